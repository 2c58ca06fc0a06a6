"""What versions of ONNX Runtime do is a table of measurements, which the installed one confirms."""

import os
import runpy
import tomllib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.models import FLOAT16, build, info, make_cnn, node, weight

import bitwright
from bitwright.cli import main
from bitwright.errors import TargetError
from bitwright.targets.target import DATA

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "measure_runtimes.py"))
TABLE = tomllib.loads((DATA.parent / "runtimes.toml").read_text())
VERSIONS = Path(os.environ.get("BITWRIGHT_RUNTIMES", "no such folder"))
"""A folder with installed versions, as the script takes it."""
CASES = [pytest.param(row, make, id=SCRIPT["describe"](row)) for row, _, make in SCRIPT["CASES"]]


def find(model, version):
    return {one.rule: one for one in bitwright.verify(model, runtime=version).findings}


def test_every_fact_has_versions_that_show_it_and_a_remedy():
    assert len(TABLE["facts"]) >= 40
    for fact in TABLE["facts"]:
        ranges = [pair for effect in ("refused", "wrong", "crash") for pair in fact.get(effect, [])]
        assert ranges and fact["remedy"] and fact["what"].startswith(fact["op"])
        for first, last in ranges:
            assert {first, last} - {""} <= TABLE["versions"].keys()


@pytest.mark.parametrize(("row", "make"), CASES)
def test_the_installed_runtime_does_what_the_table_says(row, make):
    proto, feeds = make()
    version = ".".join(ort.__version__.split(".")[:2])
    found = find(proto, version)
    if "fed_by" in row:  # it would end this process
        assert row["op"] in found
        return
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        session.run(None, {name: np.asarray(array) for name, array in feeds.items()})
        loads = True
    except Exception:  # noqa: BLE001 - whatever it raises, it is refused
        loads = False
    assert loads == (not any(one.consequence == "refused" for one in found.values()))


@pytest.mark.skipif(not VERSIONS.is_dir(), reason="needs versions in BITWRIGHT_RUNTIMES")
@pytest.mark.parametrize(("row", "make"), CASES)
def test_other_versions_do_what_the_table_says(row, make):
    case = make()
    for folder in sorted(path for path in VERSIONS.iterdir() if path.is_dir()):
        state, _ = SCRIPT["run"](folder, case)
        found = find(case[0], ".".join(folder.name.split(".")[:2]))
        refused = any(one.consequence == "refused" for one in found.values())
        if row.get("fed_by") is None:
            assert refused == (state != "found"), folder.name


def make_products(bits, level):
    made = bitwright.quantize(
        build(
            [node("MatMul", ["x", "w"], ["y"], "product")],
            {"x": [4, 64]},
            [info("y", [4, 64])],
            {"w": weight(64, 64)},
        ),
        recipe={"base": "int4-rtn", "weights": {"bits": bits, "accuracy_level": level}},
    )
    return made.model


def test_two_bits_are_refused_wrong_and_right_as_versions_go():
    model = make_products(2, 4)
    found = {version: find(model, version) for version in ("1.20", "1.25", "1.31")}
    assert found["1.20"]["MatMulNBits"].consequence == "refused"
    assert found["1.25"]["MatMulNBits"].consequence == "wrong"
    assert "MatMulNBits" not in found["1.31"]
    assert not find(make_products(4, 0), "1.20").keys() & {"MatMulNBits"}


def test_opsets_and_ir_versions_that_a_version_does_not_read_are_named():
    found = find(make_cnn(opset=23, ir_version=11), "1.22.1")
    assert found["opset"].message == "it has opset 23, above 22"
    assert found["ir"].message == "it has ir 11, above 10"


def test_half_products_behind_a_transpose_crash(tmp_path, capsys):
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node("MatMul", ["t", "w"], ["y"], "product"),
    ]
    constants = {"w": weight(8, 4).astype(np.float16)}
    shapes = ([2, 3, 8], [3, 2, 4])
    inputs, outputs = ([info(n, s, FLOAT16)] for n, s in zip("xy", shapes, strict=True))
    onnx.save(build(nodes, inputs, outputs, constants), tmp_path / "m.onnx")
    assert main(["verify", str(tmp_path / "m.onnx"), "--runtime", "1.31"]) == 1
    assert "crashes on MatMul" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "m.onnx"), "--runtime", "1.20"]) == 0


def test_runtimes_that_were_not_measured_are_refused():
    for name in ("1.2", "onnxruntime-web 1.22", "openvino"):
        with pytest.raises(TargetError, match=r"nothing was measured of .* from 1\.19 on"):
            bitwright.verify(make_cnn(), runtime=name)
