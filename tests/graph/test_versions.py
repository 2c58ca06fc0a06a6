from __future__ import annotations

import onnx
import onnxruntime as ort
import pytest

from bitwright.errors import ModelError
from bitwright.graph import load_model, runtime_limits, save_model, stamp_versions
from bitwright.graph.versions import minimum_ir_version
from bitwright.run import Session


def test_the_limits_are_exact(builders):
    limits = runtime_limits()

    def opens(ir_version, opset):
        data = builders.mlp(opset=opset, ir_version=ir_version).SerializeToString()
        options = ort.SessionOptions()
        options.log_severity_level = 4
        try:
            ort.InferenceSession(data, options)
        except Exception:  # noqa: BLE001
            return False
        return True

    assert opens(limits.ir_version, 13) and not opens(limits.ir_version + 1, 13)
    assert opens(8, limits.opset) and not opens(8, limits.opset + 1)


def test_a_model_stamped_by_the_newest_onnx_can_be_run_after_stamping(builders, tmp_path):
    proto = builders.mlp(opset=21, ir_version=onnx.IR_VERSION)
    model = load_model(proto)
    Session(model)  # sessions lower it by themselves
    Session(proto)
    assert proto.ir_version == model.ir_version == onnx.IR_VERSION
    stamp_versions(model)
    save_model(model, tmp_path / "m.onnx")
    ort.InferenceSession(tmp_path / "m.onnx")


@pytest.mark.parametrize(("opset", "before", "after"), [(21, 8, 10), (13, 3, 7), (17, 9, 9)])
def test_the_ir_version_suits_the_opset(builders, opset, before, after):
    model = load_model(builders.mlp(opset=opset, ir_version=before))
    stamp_versions(model)
    assert model.ir_version == after


def test_an_opset_newer_than_the_runtime_reads_is_refused(builders):
    model = load_model(builders.mlp())
    model.graph.opset_imports[""] = runtime_limits().opset + 1
    with pytest.raises(ModelError, match="reads up to"):
        stamp_versions(model)


@pytest.mark.parametrize("opset", [1, 2, 3, 4])
def test_opsets_that_onnx_has_no_row_for_have_the_lowest_version(opset):
    assert minimum_ir_version(opset) == minimum_ir_version(5)
