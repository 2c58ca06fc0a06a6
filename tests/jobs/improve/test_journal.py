"""What is in the journal survives a kill, and only for the job that it is of."""

import pytest

from bitwright.errors import DataError, OutputError
from bitwright.jobs.improve.journal import FIGURES, Journal
from bitwright.support.store import PartStore

JOB = {"model": "a", "data": "b"}


def test_figures_are_there_again(tmp_path):
    with Journal(tmp_path / "work", JOB) as journal:
        journal["eval/float"] = [1.0, 0.5]
        journal["eval/float"] = [1.0, 0.25]
    with Journal(tmp_path / "work", JOB) as journal:
        assert journal.get("eval/float") == [1.0, 0.25]
        assert "eval/int8" not in journal


@pytest.mark.parametrize("name", ["model", "data"])
def test_the_journal_of_another_job_is_refused_and_says_what_is_other(tmp_path, name):
    with Journal(tmp_path, JOB) as journal:
        journal["one"] = 1
    with pytest.raises(DataError, match=f"holds what was finished of another {name}"):
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


def test_a_folder_of_something_else_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / FIGURES).mkdir()
    (tmp_path / FIGURES / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="holds nothing of ours; name another one"):
        Journal(tmp_path, JOB)
    assert [path.name for path in (tmp_path / FIGURES).iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("now", [b"0.35", b""])
def test_a_damaged_figure_is_left_out_with_a_warning(tmp_path, now):
    with Journal(tmp_path, JOB) as journal:
        for number in (1, 2, 3):
            journal[f"figure {number}"] = number / 8
    file = PartStore(tmp_path / FIGURES, job=JOB).path("figure 2")
    file.write_bytes(file.read_bytes().replace(b"0.25", now))
    with Journal(tmp_path, JOB) as journal:
        with pytest.warns(UserWarning, match="is damaged, or of another job"):
            assert [journal.get(f"figure {number}") for number in (1, 2, 3)] == [0.125, None, 0.375]
        journal["figure 2"] = 0.25
    with Journal(tmp_path, JOB) as journal:
        assert journal.get("figure 2") == 0.25


def test_a_file_in_place_of_the_figures_is_one_sentence(tmp_path):
    (tmp_path / FIGURES).write_text("")
    with pytest.raises(OutputError, match=r"cannot keep what is finished in .*figures"):
        Journal(tmp_path, JOB)
