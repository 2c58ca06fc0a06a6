"""What is in the journal survives a kill, and only for the job that it is of."""

import json

import pytest

from bitwright.errors import DataError, OutputError
from bitwright.jobs.improve.journal import Journal

JOB = {"model": "a", "data": "b"}


def test_figures_are_there_again(tmp_path):
    with Journal(tmp_path / "work", JOB) as journal:
        journal["eval/float"] = [1.0, 0.5]
        journal["eval/float"] = [1.0, 0.25]
    with Journal(tmp_path / "work", JOB) as journal:
        assert journal.get("eval/float") == [1.0, 0.25]
        assert "eval/int8" not in journal


def test_a_line_that_was_cut_off_is_dropped_and_written_over(tmp_path):
    with Journal(tmp_path, JOB) as journal:
        journal["one"] = 1
        journal["two"] = 2
    file = tmp_path / "journal.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    with Journal(tmp_path, JOB) as journal:
        assert journal.get("one") == 1
        assert journal.get("two") is None
        journal["three"] = 3
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line.get("name") for line in lines] == [None, "one", "three"]


@pytest.mark.parametrize("name", ["model", "data"])
def test_the_journal_of_another_job_is_refused_and_says_what_is_other(tmp_path, name):
    with Journal(tmp_path, JOB) as journal:
        journal["one"] = 1
    with pytest.raises(DataError, match=f"holds the journal of another {name}"):
        Journal(tmp_path, {**JOB, name: "c"})
    with Journal(tmp_path, JOB) as journal:  # which it did not touch
        assert journal.get("one") == 1


def test_two_runs_cannot_write_in_one_folder(tmp_path):
    with Journal(tmp_path, JOB), pytest.raises(OutputError, match="another run is tuning in"):
        Journal(tmp_path, JOB)


def test_without_a_folder_nothing_is_written():
    with Journal(None, JOB) as journal:
        journal["one"] = 1
        assert journal.get("one") == 1
        assert journal.path("best.onnx") is None


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot create the folder"):
        Journal(tmp_path / "file" / "work", JOB)


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "journal.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(DataError, match="is no journal; name another folder"):
        Journal(tmp_path, JOB)


def journal_of_three(folder):
    with Journal(folder, JOB) as journal:
        for number in (1, 2, 3):
            journal[f"figure {number}"] = number / 8
    return folder / "journal.jsonl"


@pytest.mark.parametrize(
    "change", [(b"0.25", b"0.35"), (b"figure 2", b"figure\xff"), (b": 0.25", b"")]
)
def test_a_damaged_line_is_left_out_with_a_warning(tmp_path, change):
    file = journal_of_three(tmp_path)
    file.write_bytes(file.read_bytes().replace(*change))
    with pytest.warns(UserWarning, match=r"1 line of .* are damaged"):
        journal = Journal(tmp_path, JOB)
    with journal:
        assert [journal.get(f"figure {number}") for number in (1, 2, 3)] == [0.125, None, 0.375]
        journal["figure 2"] = 0.25
    with pytest.warns(UserWarning, match="are damaged"), Journal(tmp_path, JOB) as journal:
        assert journal.get("figure 2") == 0.25


def test_a_journal_whose_head_is_damaged_begins_anew_with_a_warning(tmp_path):
    file = journal_of_three(tmp_path)
    file.write_bytes(file.read_bytes().replace(b'"model": "a"', b'"model": "q"'))
    with pytest.warns(UserWarning, match="is damaged; all is measured again"):
        journal = Journal(tmp_path, JOB)
    with journal:
        assert "figure 1" not in journal
        journal["figure 1"] = 1
    with Journal(tmp_path, JOB) as journal:
        assert journal.get("figure 1") == 1


@pytest.mark.parametrize("content", ["hello", "hello\n", "{}"])
def test_a_foreign_file_is_never_cut(tmp_path, content):
    (tmp_path / "journal.jsonl").write_text(content)
    with pytest.raises(DataError, match="is no journal"):
        Journal(tmp_path, JOB)
    assert (tmp_path / "journal.jsonl").read_text() == content


def test_a_folder_in_place_of_the_journal_is_one_sentence(tmp_path):
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(OutputError, match=r"cannot write the journal .*: Is a directory"):
        Journal(tmp_path, JOB)
