"""Weights that need no data are rounded when the model is written, with the same bytes."""

import numpy as np
import onnx
import pytest
from support.models import build, info, node

import bitwright
from bitwright import HQQ, Nearest, Recipe, WeightOnly
from bitwright.errors import ModelError
from bitwright.jobs.weight_only import job
from bitwright.numerics import block_search, row_reading


def make_model(folder, *, broken=False):
    """Return the file of a model with a product, a transposed one and a table, its data outside."""
    rng = np.random.default_rng(0)
    constants = {
        "table": rng.standard_normal((50, 64)).astype(np.float32),
        "w": rng.standard_normal((64, 96)).astype(np.float32),
        "v": rng.standard_normal((40, 96)).astype(np.float16).astype(np.float32),
    }
    if broken:
        constants["v"][3, 5] = np.nan
    nodes = [
        node("Gather", ["table", "ids"], ["x"], "lookup"),
        node("MatMul", ["x", "w"], ["h"], "first"),
        node("Gemm", ["h", "v"], ["y"], "second", transB=1),
    ]
    model = build(nodes, [info("ids", ["n"], onnx.TensorProto.INT64)], [info("y", None)], constants)
    path = folder / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, size_threshold=0)
    return path


def recipe(**options):
    return Recipe(mode="weight-only", weights=WeightOnly(embeddings=True, **options))


@pytest.mark.parametrize("output", ["matmul-nbits", "qdq", "float"])
@pytest.mark.parametrize("large", [False, True])
def test_a_work_folder_changes_no_byte(tmp_path, monkeypatch, output, large):
    model = make_model(tmp_path)
    if large:
        monkeypatch.setattr(bitwright.graph, "MAX_HELD_BYTES", 0)
    chosen = recipe(output=output)
    bitwright.quantize(model, tmp_path / "lazy.onnx", recipe=chosen, external_data=False)
    bitwright.quantize(
        model, tmp_path / "kept.onnx", recipe=chosen, external_data=False, work=tmp_path / "work"
    )
    assert list((tmp_path / "work").glob("*.safetensors"))
    assert (tmp_path / "lazy.onnx").read_bytes() == (tmp_path / "kept.onnx").read_bytes()


@pytest.mark.parametrize("rounding", [Nearest(), HQQ()])
def test_nearest_rounding_stores_nothing_on_the_way(tmp_path, monkeypatch, rounding):
    monkeypatch.setattr(job, "BlockStore", None)  # whoever opens one fails
    model = make_model(tmp_path)
    if isinstance(rounding, Nearest):
        assert bitwright.quantize(model, recipe=recipe(rounding=rounding)).size
    else:
        with pytest.raises(TypeError):
            bitwright.quantize(model, recipe=recipe(rounding=rounding))


def test_pieces_read_from_the_file_give_the_same_bytes(tmp_path, monkeypatch):
    pytest.importorskip("numba")
    model, files = make_model(tmp_path), []
    monkeypatch.setattr(block_search, "MIN_COMPILED_WORK", 0)
    for piece in (1 << 20, 64):
        monkeypatch.setattr(row_reading, "_NUMBERS_AT_ONCE", piece)
        bitwright.quantize(model, tmp_path / "out.onnx", recipe=recipe())
        files.append((tmp_path / "out.onnx").read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize("large", [False, True])
def test_a_weight_that_is_no_number_is_named(tmp_path, monkeypatch, large):
    model = make_model(tmp_path, broken=True)
    if large:
        monkeypatch.setattr(bitwright.graph, "MAX_HELD_BYTES", 0)
    with pytest.raises(ModelError, match=r"weight 'v' holds NaN .* \('second'\)"):
        bitwright.quantize(model, tmp_path / "out.onnx", recipe=recipe())
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("large", [False, True])
def test_progress_counts_each_weight_once(tmp_path, monkeypatch, large):
    seen = []
    if large:
        monkeypatch.setattr(bitwright.graph, "MAX_HELD_BYTES", 0)
    bitwright.quantize(
        make_model(tmp_path),
        tmp_path / "out.onnx",
        recipe=recipe(),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]
