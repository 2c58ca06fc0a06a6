"""The table counts, and finds exporters that differ."""

from __future__ import annotations

from dataclasses import replace

from zoo.journal import Journal, Record, write_records
from zoo.table import find_cause, find_differences, find_whole, make_table, why_different
from zoo.verbs import VERBS


def record(exporter="torchscript", verb="static", outcome="passed", **facts):
    return Record("library/network", exporter, 17, "static", verb, outcome, **facts)


def test_exporters_that_differ_by_more_than_a_decibel_are_found():
    pair = [record(sqnr=30.0), record("dynamo", sqnr=28.5)]
    assert find_differences(pair) == [tuple(pair)]
    assert find_differences([record(sqnr=30.0), record("dynamo", sqnr=29.5)]) == []


def test_a_difference_is_explained_by_an_opset_without_layer_norms():
    older, newer = record(sqnr=28.0), record("dynamo", sqnr=30.0)
    assert why_different(older, newer) == "unknown"
    assert "opset 13 (torchscript)" in why_different(replace(older, opset=13), newer)


def test_errors_of_float_rounding_alone_do_not_count_as_different():
    assert find_differences([record(sqnr=70.0), record("dynamo", sqnr=140.0)]) == []


def test_a_low_error_is_explained_by_what_more_bits_give():
    low = record(outcome="low", sqnr=9.0)
    fine = record(verb="a16w8", sqnr=40.0)
    known = {one.key: one for one in (low, fine)}
    assert find_cause(low, known) == "activations of 8 bits: with 16 it has 40.0 dB"


def test_an_architecture_is_whole_where_one_export_went_through_every_verb():
    verbs = [verb.name for verb in VERBS]
    one, two = (
        [record(exporter, verb) for verb in verbs] for exporter in ("torchscript", "dynamo")
    )
    assert find_whole(one) == {"library/network"}
    assert find_whole([*one[:5], *two[5:]]) == set()


def test_failures_and_reasons_stand_in_the_table():
    text = make_table(
        [
            record(outcome="failed", reason="untyped: KeyError: 'x'"),
            record(verb="dynamic", outcome="refused", reason="no weight 'a' of 3 is quantized"),
            record("dynamo", "export", "not exported", reason="no decomposition"),
        ]
    )
    assert "untyped: KeyError: 'x'" in text
    assert "no weight '…' of # is quantized" in text
    assert "no decomposition" in text
    assert "| library | torchscript | 1 | 0 | 0 | 1 |" in text


def test_a_journal_is_read_again_and_half_a_line_is_left_out(tmp_path):
    path = tmp_path / "journal.jsonl"
    Journal(path).add(record(sqnr=12.5))
    with path.open("a") as file:
        file.write('{"architecture": "cut o')
    assert list(Journal(path).records.values()) == [record(sqnr=12.5)]


def test_a_run_goes_on_from_the_records_of_another_machine(tmp_path):
    kept = tmp_path / "results.jsonl.gz"
    elsewhere = [record("dynamo", sqnr=9.5), record(sqnr=12.5)]
    write_records(elsewhere, kept)
    first = kept.read_bytes()
    write_records(reversed(elsewhere), kept)
    assert kept.read_bytes() == first
    journal = Journal(tmp_path / "journal.jsonl", kept)
    assert sorted(r.sqnr for r in journal.records.values()) == [9.5, 12.5]
    journal.add(record(sqnr=13.0))
    again = Journal(tmp_path / "journal.jsonl", kept)
    assert sorted(r.sqnr for r in again.records.values()) == [9.5, 13.0]
