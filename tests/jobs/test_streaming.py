"""Models that are too large to be held: weights are read, made and written one after the other."""

import tracemalloc

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.models import build, info, node

import bitwright
from bitwright.graph import tensor_slots

WIDTH, LAYERS = 512, 12


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A chain of products whose weights lie in a file beside it."""
    rng = np.random.default_rng(0)
    constants = {
        f"w{n}": (rng.normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32)
        for n in range(LAYERS)
    }
    nodes = [node("MatMul", [f"x{n}", f"w{n}"], [f"x{n + 1}"], f"p{n}") for n in range(LAYERS)]
    shape = ["n", WIDTH]
    graph = build(nodes, [info("x0", shape)], [info(f"x{LAYERS}", shape)], constants, opset=17)
    path = tmp_path_factory.mktemp("large") / "model.onnx"
    onnx.save(graph, path, save_as_external_data=True, location="model.data", size_threshold=1024)
    return path


RECIPES = ["int8-dynamic", "float16", "bfloat16", "int4-rtn"]


@pytest.fixture
def large(monkeypatch):
    monkeypatch.setattr(bitwright.graph, "MAX_HELD_BYTES", 0)
    monkeypatch.setattr("bitwright.emit.dynamic_graph.MAX_HELD_BYTES", 0)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_large_model_becomes_what_a_small_one_becomes(recipe, model, tmp_path, request):
    bitwright.quantize(model, tmp_path / "small.onnx", recipe=recipe)
    request.getfixturevalue("large")
    result = bitwright.quantize(model, tmp_path / "large.onnx", recipe=recipe)
    small, large = (onnx.load(tmp_path / f"{name}.onnx") for name in ("small", "large"))
    assert small.graph == large.graph
    assert any("too large to be open twice" in note for note in result.plan.notes)
    assert "Not measured" in result.verdict.sentence and result.coverage is None


@pytest.mark.parametrize("recipe", RECIPES)
def test_of_a_large_model_a_few_weights_are_in_memory_and_none_is_opened(
    recipe, model, tmp_path, large, monkeypatch
):
    opened = []
    monkeypatch.setattr("bitwright.jobs.output.Session", lambda *_, **__: opened.append("output"))
    monkeypatch.setattr("bitwright.jobs.opening.Session", lambda *_, **__: opened.append("float"))
    bitwright.quantize(model, recipe=recipe)  # imports what it needs
    tracemalloc.start()
    bitwright.quantize(model, tmp_path / "out.onnx", recipe=recipe)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    weight = 4 * WIDTH * WIDTH
    assert peak < 7 * weight < LAYERS * weight
    assert not opened


@pytest.mark.parametrize("recipe", RECIPES[:3])
def test_no_file_of_weights_stays_mapped(recipe, model, large):
    source = ir.load(model)
    bitwright.quantize(source, recipe=recipe)
    assert [slot.name for slot in tensor_slots(source) if getattr(slot.tensor, "raw", None)] == []


@pytest.mark.parametrize("recipe", ["int8-dynamic", "float16"])
def test_with_data_a_large_model_is_measured_all_the_same(recipe, model, large):
    data = [{"x0": np.random.default_rng(1).normal(size=(2, WIDTH)).astype(np.float32)}]
    result = bitwright.quantize(model, recipe=recipe, data=data)
    assert result.outputs[0].sqnr > 20 and result.samples == 1
