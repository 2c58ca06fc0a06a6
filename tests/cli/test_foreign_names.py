"""Names that try to command the terminal, or to forge a line of ours, through every verb."""

import json
import re
from xml.etree import ElementTree

import onnx
import pytest
from support.models import build, info, node, normal

from bitwright.cli import main

EVIL = "\x1b[31m\x1b]0;owned\x07\nerror: forged\x9b31m\u202e\u2028warning: forged\x01"
ACTED_ON = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]|^(error|warning): forged", re.M)


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """A model all of whose names are hostile, and its quantized form."""
    nodes = [
        node("Conv", ["x" + EVIL, "w" + EVIL], ["a" + EVIL], name="conv" + EVIL),
        node("Relu", ["a" + EVIL], ["b" + EVIL], name="relu" + EVIL),
        node("Conv", ["b" + EVIL, "v" + EVIL], ["y" + EVIL], name="last" + EVIL),
    ]
    weights = {"w" + EVIL: normal(8, 3, 3, 3), "v" + EVIL: normal(8, 8, 3, 3)}
    size = ["N" + EVIL, 3, 9, 9]
    model = build(nodes, [info("x" + EVIL, size)], {"y" + EVIL: None}, weights)
    model.producer_name = "producer" + EVIL
    path = tmp_path_factory.mktemp("evil") / "evil.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def quantized(evil):
    path = evil.with_name("q.onnx")
    words = ["--random-data", "2", "--for", "size", "--no-timing", "-q"]
    assert main(["quantize", str(evil), "-o", str(path), *words]) == 0
    return path


VERBS = {
    "inspect": "inspect {float}",
    "inspect, quantized": "inspect {quantized} --target npu-cnn",
    "quantize": "quantize {float} -o {out} --random-data 2 -v --for size --no-timing",
    "an unknown name": "quantize {float} -o {out} --random-data 2 -v --exclude nothing",
    "compare": "compare {float} {quantized} --random-data 2 -v",
    "verify": "verify {quantized} --target npu-cnn -v",
    "plan": "plan {float} -o {out} --random-data 2 -v",
}


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_printed_and_logged_is_inert(run, evil, quantized, tmp_path, verb):
    places = {"float": evil, "quantized": quantized, "out": tmp_path / "out"}
    words = [word.format(**places) for word in VERBS[verb].split()]
    answer = run(*words, "--log-file", tmp_path / "log")
    shown = answer.out + answer.err
    assert r"\x1b[31m" in shown
    assert not ACTED_ON.search(shown)
    assert not ACTED_ON.search((tmp_path / "log").read_text())


def test_json_has_the_names_and_is_inert(run, evil):
    answer = run("inspect", evil, "--json")
    assert not ACTED_ON.search(answer.out)
    assert json.loads(answer.out)["producer"] == "producer" + EVIL


@pytest.mark.parametrize("target", ["npu-cnn", "all"])
def test_junit_is_well_formed(run, quantized, target):
    answer = run("verify", quantized, "--target", target, "--format", "junit")
    suite = ElementTree.fromstring(answer.out)
    assert r"\x1b[31m" in "".join(suite.itertext())
    assert not ACTED_ON.search(answer.out)
