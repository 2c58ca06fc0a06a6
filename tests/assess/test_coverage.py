"""What the runtime computes in integers, held against the kernels that its profile names."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime
import pytest
from support.models import as_proto, build, make_cnn, make_samples, make_transformer, node, weight

import bitwright
from bitwright.assess.coverage import Coverage, measure_coverage
from bitwright.graph import load_model

FLOAT_KERNELS = {"Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul", "FusedMatMul"}
INTEGER_KERNELS = {
    "QLinearConv",
    "QGemm",
    "QLinearMatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "ConvInteger",
}


def profiled(model, sample, folder):
    """Return how many kernels of products ran, and how many of integers, by the runtime."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = onnxruntime.InferenceSession(
        as_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    session.run(None, sample)
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = [
        event["args"]["op_name"]
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    ]
    integers = sum(op in INTEGER_KERNELS for op in ran)
    return integers + sum(op in FLOAT_KERNELS for op in ran), integers


@pytest.mark.parametrize("recipe", ["int8", "int8-dynamic", "float"])
@pytest.mark.parametrize("make", [make_cnn, make_transformer])
def test_the_count_is_that_of_the_kernels_that_run(make, recipe, tmp_path):
    model = make()
    samples = make_samples(model, 8)
    made, force = model, recipe == "int8-dynamic"
    if recipe != "float":
        options = {"recipe": recipe, "data": samples, "force_dynamic": force}
        made = bitwright.quantize(model, **options).model
    found = measure_coverage(load_model(model) if recipe == "float" else made, samples[0])
    assert (found.products, found.integer_products) == profiled(made, samples[0], tmp_path)
    assert found.products > 0


def test_a_product_that_is_left_float_is_counted_so(tmp_path):
    model = make_cnn()
    samples = make_samples(model, 8)
    names = [n.name for n in load_model(model).graph if n.op_type == "Conv"]
    recipe = bitwright.load_recipe("int8").replace(select={"exclude": (names[-1],)})
    made = bitwright.quantize(model, recipe=recipe, data=samples).model
    found = measure_coverage(made, samples[0])
    assert found.integer_products < found.products
    assert (found.products, found.integer_products) == profiled(made, samples[0], tmp_path)
    assert 0 < found.share < 1


def test_multiply_adds_are_those_of_the_shapes():
    constants = {"w": weight(6, 4, 3, 3), "v": weight(6, 7), "flat": np.array([1, 6, -1])}
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        node("Reshape", ["c", "flat"], ["r"]),
        node("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["t", "v"], ["y"], name="product"),
    ]
    model = load_model(build(nodes, {"x": [1, 4, "h", "w"]}, {"y": None}, constants))
    found = measure_coverage(model, {"x": np.zeros((1, 4, 5, 8), np.float32)})
    assert found == Coverage(2, 0, 40 * 6 * 4 * 9 + 40 * 6 * 7, 0)
    assert found.share == 0


def test_sizes_that_are_open_are_not_counted():
    model = load_model(
        build(
            [node("MatMul", ["x", "w"], ["y"])], {"x": ["n", 4]}, {"y": None}, {"w": weight(4, 5)}
        )
    )
    found = measure_coverage(model)
    assert (found.products, found.multiply_adds, found.share) == (1, None, None)
    assert found.describe() == "0 of 1 products in integers"


@pytest.mark.parametrize(("level", "integers"), [(0, 0), (4, 1)])
def test_n_bit_products_are_integer_only_at_the_level_that_rounds_activations(level, integers):
    model = build(
        [node("MatMul", ["x", "w"], ["y"], name="p")],
        {"x": [2, 32]},
        {"y": [2, 16]},
        {"w": weight(32, 16)},
    )
    recipe = bitwright.load_recipe("int4-rtn")
    changed = msgspec.structs.replace(recipe.weights, accuracy_level=level)
    recipe = recipe.replace(weights=changed)
    found = measure_coverage(bitwright.quantize(model, recipe=recipe).model)
    assert (found.products, found.integer_products) == (1, integers)
    assert found.multiply_adds == 2 * 32 * 16


def test_coverage_is_told_in_words():
    found = Coverage(12, 10, 2_000_000, 1_900_000)
    assert found.describe() == "10 of 12 products in integers (95 % of multiply-adds)"
    assert Coverage(0, 0, 0, 0).describe() == "no products"
