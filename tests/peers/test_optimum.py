"""Optimum's `ORTQuantizer` gives with Bitwright what it gives with ONNX Runtime's tool."""

import pytest
from support.tool_environment import run_cases

# Constants that ONNX Runtime's tool quantizes at every run are stored as integers, and what scales
# a mask by a huge number stays float (docs/from-onnxruntime.md), so these have other counts.
OTHER_COUNTS = {"bert integer ops"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_configuration_gives_the_same_files_ops_and_errors(tmp_path):
    found = run_cases("optimum_cases.py", tmp_path)
    assert found["ours"].keys() == found["peer"].keys() and len(found["ours"]) > 30
    faults = {name for name, case in found["peer"].items() if "raises" in case}
    assert faults == {"bert no ranges", "resnet no ranges"}
    for name, theirs in found["peer"].items():
        ours = found["ours"][name]
        if name in faults:
            assert ours == theirs, name
            continue
        assert "error" in ours, f"{name}: {ours}"
        assert ours["files"] == theirs["files"], name
        if name not in OTHER_COUNTS:
            assert ours["ops"] == theirs["ops"], name
        assert ours["error"] <= 1.1 * theirs["error"] + 1e-5, name
