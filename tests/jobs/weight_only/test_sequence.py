"""Weights that are rounded on torch: the layers run there too, and the results are numpy's."""

import numpy as np
import pytest
from onnx import numpy_helper
from support.language_models import make_block, make_samples

import bitwright
from bitwright import AWQ, GPTQ, Recipe, WeightOnly
from bitwright.errors import ModelError
from bitwright.jobs.weight_only import rounding
from bitwright.run import layerwise

pytest.importorskip("torch")


def quantize(device, model=None, **options):
    recipe = Recipe(mode="weight-only", weights=WeightOnly(accuracy_level=0, **options))
    given = make_block() if model is None else model
    return bitwright.quantize(given, data=make_samples(), recipe=recipe, device=device)


def codes_of(result):
    return {
        name: value.const_value.numpy()
        for name, value in result.model.graph.initializers.items()
        if name.endswith("_q4")
    }


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (np.float32, {"rounding": GPTQ()}),
        (np.float16, {"rounding": GPTQ()}),
        (np.float32, {"rounding": GPTQ(per_column=False)}),
        (np.float32, {"rounding": GPTQ(), "refine": 1}),
        (np.float32, {"awq": AWQ(grid=2)}),
    ],
)
@pytest.mark.sampled(1)
def test_torch_rounds_as_numpy_does(monkeypatch, dtype, options):
    model = make_block(dtype=dtype)
    here = quantize("cpu", model, **options)
    # Whoever opens a session for a piece fails.
    monkeypatch.setattr(layerwise, "Session", None)
    there = quantize("torch", model, **options)
    first, second = codes_of(here), codes_of(there)
    assert first.keys() == second.keys() and first
    same = np.mean([np.mean(first[name] == second[name]) for name in first])
    # A tie that falls the other way changes what all rows behind it make up for, and ONNX Runtime
    # computes float16 in float32. A byte holds two codes.
    assert same > (0.9 if dtype == np.float32 else 0.8)
    for mine, theirs in zip(here.outputs, there.outputs, strict=True):
        assert mine.sqnr == pytest.approx(theirs.sqnr, abs=0.5)


def test_weights_of_one_input_are_rounded_together(monkeypatch):
    widths = []
    original = rounding.gptq

    def gptq(weights, *arguments, **options):
        widths.append(weights.shape[1])
        return original(weights, *arguments, **options)

    monkeypatch.setattr(rounding, "gptq", gptq)
    quantize("torch", rounding=GPTQ(), refine=1)
    assert widths[0] == 256  # gate and up, of 128 each


def test_operators_that_torch_has_not_run_in_sessions(monkeypatch):
    from bitwright.learning.torch_graph import table

    model = make_block()
    wanted = codes_of(quantize("torch", model, rounding=GPTQ()))
    monkeypatch.delitem(table.OPS, "LayerNormalization")
    opened = []
    original = layerwise.Session
    monkeypatch.setattr(layerwise, "Session", lambda *a, **o: opened.append(1) or original(*a, **o))
    found = codes_of(quantize("torch", model, rounding=GPTQ()))
    assert opened
    assert np.mean([np.mean(found[name] == wanted[name]) for name in wanted]) > 0.9


def test_a_weight_that_is_no_number_is_named():
    model = make_block()
    (up,) = (tensor for tensor in model.graph.initializer if tensor.name == "up1")
    array = numpy_helper.to_array(up).copy()
    array[3, 5] = np.inf
    up.CopyFrom(numpy_helper.from_array(array, "up1"))
    with pytest.raises(ModelError, match="weight 'up1' holds NaN or infinite values"):
        quantize("torch", model, rounding=GPTQ())
