"""The sound files that cases are made from, written once into a folder."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import bitwright
from fuzz.graphs import make_graph
from zoo.case import Case
from zoo.stored import restore

STORED = Path(__file__).parents[1] / "tests" / "zoo" / "graphs"
LARGEST_STORED = 5000
"""Bytes of a compressed graph; larger ones take too long."""


def write_seeds(folder: Path) -> None:
    """Write models, quantized models, plans, recipes, sketches, arrays, images and texts."""
    if (folder / "done").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    models, rng = folder / "models", np.random.default_rng(0)
    models.mkdir(parents=True)
    demo = bitwright.load_demo()
    shutil.copy(demo.model_path, models / "digits.onnx")
    for path in sorted(STORED.glob("*.onnx.gz")):
        if path.stat().st_size < LARGEST_STORED:
            _fix_shapes(restore(path, models))
    for seed in range(12):
        onnx.save(make_graph(seed), models / f"random{seed}.onnx")
    onnx.save(_with_functions_and_bodies(), models / "bodies.onnx")
    np.save(folder / "data.npy", demo.calibration[:4])
    np.savez(folder / "data.npz", image=demo.calibration[:4])
    (folder / "data.npy.gz").write_bytes(gzip.compress((folder / "data.npy").read_bytes(), mtime=0))
    for suffix in ("png", "jpg", "bmp", "webp"):
        Image.fromarray(rng.integers(0, 255, (9, 11, 3), np.uint8)).save(folder / f"image.{suffix}")
    (folder / "text.txt").write_text("a word, and one more word.\n" * 40)
    vocabulary = {"[UNK]": 0, "a": 1, "word": 2, "one": 3, "more": 4, "and": 5, ",": 6, ".": 7}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    onnx.save(_language_model(len(vocabulary)), folder / "words.onnx")
    result = bitwright.quantize(
        demo.model_path,
        folder / "quantized.onnx",
        data=demo.calibration[:4],
        recipe="int8",
        sketches=folder / "data.sketches",
        progress=False,
    )
    result.plan.save(folder / "plan.json")
    bitwright.quantize(
        demo.model_path,
        data=demo.calibration[:4],
        recipe="int4-gptq",
        work=folder / "work",
        progress=False,
    )
    for name in ("int8", "int4", "npu-cnn", "int8-dynamic", "int4-mixed"):
        (folder / f"{name}.recipe.json").write_text(bitwright.load_recipe(name).to_json())
    (folder / "done").touch()


def _fix_shapes(case: Case) -> None:
    """Give open dimensions of inputs the sizes that the samples have: random data needs them."""
    model = onnx.load(case.path)
    for value in model.graph.input:
        if value.name in case.calibration[0]:
            shape = value.type.tensor_type.shape
            shape.Clear()
            for size in case.calibration[0][value.name].shape:
                shape.dim.add().dim_value = size
    onnx.save(model, case.path)


def _language_model(words: int) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {"table": rng.normal(size=(words, 16)), "w": rng.normal(size=(16, words))}
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["e"], name="embed"),
        helper.make_node("MatMul", ["e", "w"], ["logits"], name="head"),
    ]
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", words])],
        [
            numpy_helper.from_array(array.astype(np.float32), name)
            for name, array in weights.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _with_functions_and_bodies() -> onnx.ModelProto:
    """Return a model with a function, an If, a Constant node and an external-looking name."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], imports
    )

    def body(op_type: str) -> onnx.GraphProto:
        node = helper.make_node(op_type, ["m"], [f"{op_type}_r"], name=op_type)
        out = helper.make_tensor_value_info(f"{op_type}_r", TensorProto.FLOAT, [1, 8])
        return helper.make_graph([node], op_type, [], [out])

    weight = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    nodes = [
        helper.make_node("Twice", ["x"], ["d"], domain="local", name="twice"),
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weight), name="w_c"),
        helper.make_node("MatMul", ["d", "w"], ["m"], name="product"),
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node(
            "If", ["c"], ["y"], then_branch=body("Relu"), else_branch=body("Tanh"), name="if"
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "bodies",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
    )
    return helper.make_model(graph, opset_imports=imports, ir_version=9, functions=[function])
