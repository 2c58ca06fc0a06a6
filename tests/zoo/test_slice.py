"""A fixed slice of the zoo: graphs of real exporters, their large weights made again from a seed.

Each stands for an architecture or for a failure that was mended, and stays. `python -m zoo store`
adds one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import bitwright
from zoo.stored import restore
from zoo.verbs import find_verbs

GRAPHS = sorted((Path(__file__).parent / "graphs").glob("*.onnx.gz"))
# Every graph gets these; the others are spread over the graphs by turns.
ALWAYS = ("static", "dynamic", "int4-gptq")
IN_TURNS = (
    ("a16w8", "inspect"),
    ("qoperator", "preprocess"),
    ("bias-correction", "plan"),
    ("int4-awq", "npu-cnn"),
    ("a8w4", "verify"),
    ("per-tensor", "compare"),
    ("int4-rtn", "sensitivity"),
)
CASES = [
    pytest.param(graph, verb, id=f"{graph.name.removesuffix('.onnx.gz')}-{verb.name}")
    for index, graph in enumerate(GRAPHS)
    for verb in find_verbs((*ALWAYS, *IN_TURNS[index % len(IN_TURNS)]))
]


@pytest.fixture(scope="module")
def restored(tmp_path_factory):
    """Return a stored graph with its weights, made once."""
    done = {}

    def find(graph):
        if graph not in done:
            done[graph] = restore(graph, tmp_path_factory.mktemp("graphs"))
        return done[graph]

    return find


def test_there_is_a_slice():
    assert len(GRAPHS) >= 30


@pytest.mark.parametrize(("graph", "verb"), CASES)
def test_a_graph_keeps_the_contract_or_is_refused_with_a_reason(restored, graph, verb, tmp_path):
    case = restored(graph)
    try:
        done = verb.run(case, tmp_path)
    except bitwright.BitwrightError as error:
        # The float model runs, so this reason would hide a failure.
        assert "does not run" not in str(error)
        assert case.expected
        return
    assert done.outcome == "passed", f"{done.reason}: {done.sqnr}"
