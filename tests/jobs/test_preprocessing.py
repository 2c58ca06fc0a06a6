"""What pre-processing makes of a model is opened before it is handed out."""

import numpy as np
import onnx_ir as ir
import pytest
from support.models import build, info, node, normal

from bitwright import preprocess
from bitwright.errors import ModelError
from bitwright.jobs import preprocessing
from bitwright.run.trial import check_still_opens, opens

# Scales and sizes both: the checker of ONNX takes it, the runtime does not.
ARRAYS = {
    "scales": np.ones(4, np.float32),
    "sizes": np.array([1, 1, 4, 4]),
    "w": normal(1, 1, 1, 1),
}


def resized(*inputs):
    return build(
        [node("Resize", ["x", *inputs], ["y"], name="resize")],
        [info("x", [1, 1, 4, 4])],
        {"y": [1, 1, 4, 4]},
        {name: array for name, array in ARRAYS.items() if name in inputs},
        opset=13,
    )


FINE, REFUSED, ALSO_REFUSED = (
    ir.from_proto(resized(*inputs))
    for inputs in (("", "scales"), ("", "scales", "sizes"), ("w", "scales", "sizes"))
)


def test_a_step_whose_model_the_runtime_refuses_is_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(preprocessing, "prepare_exactly", lambda model, **_: spoil(model))

    def spoil(model):
        resize = next(one for one in model.graph if one.op_type == "Resize")
        resize.resize_inputs(4)
        sizes = ir.Value(name="s", const_value=ir.tensor(ARRAYS["sizes"], name="s"))
        model.graph.initializers["s"] = sizes
        resize.replace_input_with(3, sizes)
        return []

    with pytest.warns(UserWarning, match="went on without optimization: "):
        found = preprocess(resized("", "scales"), tmp_path / "m.onnx")
    assert found.skipped.keys() == {"optimization"}
    assert opens(found.model)


def test_what_is_made_of_a_model_opens_where_the_model_does():
    assert check_still_opens(FINE, FINE)
    with pytest.raises(ModelError, match="resize"):
        check_still_opens(REFUSED, FINE)
    assert check_still_opens(REFUSED, FINE, limit=10)  # too big to be tried
    assert not check_still_opens(REFUSED, ALSO_REFUSED)
