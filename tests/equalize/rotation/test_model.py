"""Rotated language models compute the same, with outliers spread over all channels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from support.language_models import GROUPS, HEAD, VOCABULARY, WIDTH, make_llama
from support.models import as_proto, constants_of, info, node, run

from bitwright import load_recipe
from bitwright.equalize.rotation import rotate_model
from bitwright.graph import infer_shapes, load_model
from bitwright.jobs.opening import open_model
from bitwright.plan import Rotation
from zoo.stored import restore

STORED = Path(__file__).parents[2] / "zoo" / "graphs"


def rotated(model, seed=0):
    """Return the rotated model, and what was said about it."""
    changed = load_model(model)
    infer_shapes(changed)
    result = rotate_model(changed, seed)
    return as_proto(changed), result


def feed(model, length=9, past=0, seed=1):
    rng = np.random.default_rng(seed)
    given = {"ids": rng.integers(0, VOCABULARY, (2, length))}
    for each in model.graph.input:
        if each.name == "at":
            given["at"] = rng.integers(0, 40, (2, length))
        elif each.name.startswith("past"):
            given[each.name] = np.zeros((2, GROUPS, past, HEAD), np.float32)
    return given


def distance(expected, found):
    return np.abs(expected - found).max() / np.abs(expected).max()


@pytest.mark.parametrize("extras", [{}, {"biases": True, "scaled": True, "positions": True}])
@pytest.mark.parametrize("norm", ["rms", "simplified", "skip", "pieces", "layer"])
@pytest.mark.sampled(5)
def test_a_rotated_model_computes_the_same(norm, extras):
    model = make_llama(norm=norm, **extras)
    changed, result = rotated(model)
    kind = "mean-preserving" if norm == "layer" else "hadamard"
    assert result.rotation == Rotation(seed=0, streams=(kind,), attentions=2)
    before, after = constants_of(model), constants_of(changed)
    for name in ("embedding", "attention0.value.weight", "mlp1.down.weight", "head"):
        assert distance(before[name], after[name]) > 0.1
    given = feed(model)
    assert distance(run(model, given)[0], run(changed, given)[0]) < 2e-6


def test_large_channels_are_spread():
    model = make_llama()
    table = constants_of(rotated(model)[0])["embedding"]
    sizes = np.abs(table).mean(axis=0)
    assert sizes.max() < 2 * sizes.mean()
    original = np.abs(constants_of(model)["embedding"]).mean(axis=0)
    assert original.max() > 5 * original.mean()


def test_a_tied_head_gets_a_table_of_its_own():
    model = make_llama(tied=True)
    changed, result = rotated(model)
    size = VOCABULARY * WIDTH * 4
    note = f"{size / 1000:.1f} kB more before quantizing"
    assert result.untied and any(note in each for each in result.notes)
    assert not any(each.op_type == "Transpose" and "transposed" in each.name
                   for each in changed.graph.node)  # fmt: skip
    grown = sum(a.nbytes for a in constants_of(changed).values())
    assert grown - sum(a.nbytes for a in constants_of(model).values()) == size
    assert distance(run(model, feed(model))[0], run(changed, feed(model))[0]) < 2e-6
    assert not rotated(make_llama())[1].untied


def test_a_rotated_model_goes_on_from_its_own_cache():
    model = make_llama(cache=True)
    changed, result = rotated(model)
    assert result.rotation.attentions == 2
    assert any("cached values are rotated" in note for note in result.notes)
    logits = []
    for each in (model, changed):
        names = [value.name for value in each.graph.output]
        first = dict(zip(names, run(each, feed(each)), strict=True))
        past = {name.replace("present", "past"): first[name] for name in names[1:]}
        logits.append(run(each, feed(each, length=1, seed=2) | past)[0])
    assert distance(*logits) < 2e-6


def test_a_cache_that_is_only_handed_out_is_not_rotated():
    model = make_llama()
    model.graph.output.append(info("attention0.value/heads/out"))
    changed, result = rotated(model)
    assert result.rotation == Rotation(seed=0, streams=("hadamard",), attentions=1)
    for expected, found in zip(run(model, feed(model)), run(changed, feed(model)), strict=True):
        assert distance(expected, found) < 2e-6


def test_seeds_give_other_matrices_and_each_the_same_bytes():
    model = make_llama()
    first, again, other = (rotated(model, seed)[0].SerializeToString() for seed in (0, 0, 1))
    assert first == again != other


def change_output(model):
    model.graph.output.append(info("middle0/sum/out"))


def read_otherwise(model):
    model.graph.node.append(node("Relu", ["middle0/sum/out"], ["positive"], "relu"))
    model.graph.output.append(info("positive"))


def gate_stream(model):
    """A norm with gains writes to the stream, as those behind the layers of Gemma 2 do."""
    for each in model.graph.node:
        if each.name == "middle0/sum":
            each.input[1] = "scaled_by_channel"
    place = next(i for i, each in enumerate(model.graph.node) if each.name == "middle0/sum")
    inputs = ["attention0.o/out", "middle0.weight"]
    model.graph.node.insert(place, node("RMSNormalization", inputs, ["scaled_by_channel"], "post"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (change_output, "'middle0/sum/out' is an output of the model"),
        (read_otherwise, "Relu 'relu' reads it"),
        (gate_stream, "Add 'middle0/sum' reads what RMSNormalization 'post' scales by channel"),
    ],
)
def test_what_is_in_the_way_is_said_and_values_are_rotated_alone(change, reason):
    model = make_llama()
    change(model)
    changed, result = rotated(model)
    assert result.rotation == Rotation(seed=0, streams=(), attentions=2)
    assert result.notes[0].startswith("the residual stream is not rotated: ")
    assert reason in result.notes[0]
    np.testing.assert_array_equal(
        constants_of(changed)["embedding"], constants_of(model)["embedding"]
    )
    for expected, found in zip(run(model, feed(model)), run(changed, feed(model)), strict=True):
        assert distance(expected, found) < 2e-6


def test_without_an_embedding_nothing_is_rotated():
    model = make_llama()
    embed = model.graph.node[0]
    model.graph.input.append(info("embeddings", ["b", "n", WIDTH]))
    for each in model.graph.node:
        each.input[:] = ["embeddings" if name == embed.output[0] else name for name in each.input]
    model.graph.node.remove(embed)
    result = rotated(model)[1]
    assert result.rotation.streams == ()
    assert "no constant table of embeddings starts it" in result.notes[0]


@pytest.mark.parametrize(
    ("name", "streams", "attentions"),
    [
        ("transformers-llama-dynamo", ("hadamard",), 3),
        ("transformers-llama-torchscript", ("hadamard",), 3),
        ("transformers-gpt2-dynamo", ("mean-preserving",), 3),
        ("transformers-biogpt-cached-torchscript-20-static", ("mean-preserving",), 2),
        ("transformers-gemma2-cached-dynamo-18-static-external", (), 2),
        ("transformers-bert-dynamo", (), 3),
        ("genai-llama-fp32", ("hadamard",), 1),
        ("genai-qwen3-fp32", ("hadamard",), 1),
        ("genai-gemma-fp32", ("hadamard",), 1),
    ],
)
@pytest.mark.sampled(3)
def test_models_of_real_exporters_compute_the_same(name, streams, attentions, tmp_path):
    case = restore(STORED / f"{name}.onnx.gz", tmp_path)
    prepared = open_model(case.path, load_recipe("int4-rtn"))
    _give_gains(prepared.model)
    model = as_proto(prepared.model)
    result = rotate_model(prepared.model)
    assert result.rotation == Rotation(seed=0, streams=streams, attentions=attentions)
    changed = as_proto(prepared.model)
    # A cache of zeros is the same, rotated or not; what is handed out for the next run is rotated.
    given = {
        key: np.zeros_like(array) if array.dtype.kind == "f" else array
        for key, array in case.calibration[0].items()
    }
    expected, found = run(model, given)[0], run(changed, given)[0]
    assert distance(expected, found) < 1e-5


def _give_gains(model):
    """Give norms gains other than one, which small models that nobody trained do not have."""
    rng = np.random.default_rng(0)
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if len(tensor.shape) == 1 and tensor.size > 4 and tensor.dtype == ir.DataType.FLOAT:
            array = tensor.numpy() + 0.5 * rng.normal(size=tensor.size)
            value.const_value = ir.tensor(array.astype(np.float32), name=name)
