"""Olive's passes give with Bitwright what they give with ONNX Runtime's tool."""

import pytest
from support.tool_environment import run_cases


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_pass_gives_the_same_files_ops_and_errors(tmp_path):
    found = run_cases("olive_cases.py", tmp_path)
    quark = {name for name in found["ours"] if name.startswith("quark")}
    assert found["ours"].keys() - quark == found["peer"].keys() and len(found["peer"]) > 30
    faults = {name for name, case in found["peer"].items() if "raises" in case}
    assert faults == {"cnn impossible types", "mlp impossible types"}
    for name, theirs in found["peer"].items():
        ours = found["ours"][name]
        if name in faults:
            assert set(theirs["raises"]) <= set(ours["raises"]), name
            assert theirs["said"].strip() in ours["said"], name
            continue
        assert "error" in ours, f"{name}: {ours}"
        for key in ("files", "ops", "overrides"):
            assert ours[key] == theirs[key], f"{name}: {key}"
        assert ours["error"] <= 1.1 * theirs["error"] + 1e-5, name
    for name in quark:
        case = found["ours"][name]
        assert "error" in case, f"{name}: {case}"
        assert case["error"] < 0.06 and case["ops"]["QuantizeLinear"] >= 5, name
