"""Caches of attention in integers: what is stored, and the same model with float caches."""

import numpy as np
import onnx_ir as ir
import pytest
from support.genai_folders import make_folder

from bitwright import graph
from bitwright.emit.caches import channel_scales, find_caches, quantize_caches, with_float_caches
from bitwright.errors import AlreadyQuantizedError, ModelError, NothingQuantizedError
from bitwright.plan import CachePlan
from bitwright.run import Session

TOKENS = np.random.default_rng(0).integers(0, 256, (2, 12))
NAMES = [f"{layer}.{part}" for layer in (0, 1) for part in ("key", "value")]


@pytest.fixture
def model(tmp_path):
    model = graph.load_model(make_folder("llama", tmp_path / "llama") / "model.onnx")
    graph.infer_shapes(model)  # the builder leaves the size of heads open
    return model


def run(model, tokens, caches=None, done=0):
    session = Session(model).runtime
    feeds = {"input_ids": tokens, "attention_mask": np.ones((len(tokens), done + tokens.shape[1]))}
    feeds["attention_mask"] = feeds["attention_mask"].astype(np.int64)
    for value in session.get_inputs()[2:]:
        width = value.shape[-1] if isinstance(value.shape[-1], int) else 16
        kind = {"tensor(int8)": np.int8, "tensor(uint8)": np.uint8}.get(value.type, np.float32)
        feeds[value.name] = np.zeros((len(tokens), 2, 0, width), kind)
    feeds |= caches or {}
    outputs = [value.name for value in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, feeds), strict=True))


def past(found):
    return {f"past_key_values.{name}": found[f"present.{name}"] for name in NAMES}


def quantized(model, bits, *, per_tensor=False):
    """Return the model with integer caches whose scales fit its own keys and values."""
    found, plans = run(model, TOKENS), {}
    for cache in find_caches(model, bits):
        peaks = [np.abs(found[value.name]).max(axis=(0, 2)) for value in cache.present]
        peaks = [peak.max() for peak in peaks] if per_tensor else peaks
        key, value = (channel_scales(peak, bits) for peak in peaks)
        plans[cache.node.name] = CachePlan(key=key, value=value)
    changed = graph.clone_model(model)
    sizes = quantize_caches(changed, plans, bits)
    graph.check_model(changed)
    return changed, plans, sizes


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("per_tensor", [False, True])
def test_keys_and_values_are_stored_rounded_to_their_scales(model, bits, per_tensor):
    changed, plans, sizes = quantized(model, bits, per_tensor=per_tensor)
    expected, found = run(model, TOKENS), run(changed, TOKENS)
    first = next(iter(plans.values()))
    # What the first layer appends is not yet moved by any rounding.
    for part, scales in (("key", first.key), ("value", first.value)):
        scale = np.float32(scales)
        scale = scale if per_tensor else scale.reshape(1, 2, 1, 16)
        codes = np.clip(np.round(expected[f"present.0.{part}"] / scale), -(2 ** (bits - 1)), 127)
        stored = found[f"present.0.{part}"]
        if bits == 4:
            pairs = (codes + 8).astype(np.uint8)
            codes = pairs[..., ::2] | (pairs[..., 1::2] << 4)
            assert np.mean(stored == codes) > 0.99  # float rounding may move a tie
        else:
            assert np.abs(stored.astype(int) - codes).max() <= 1
    # Two layers of keys and values, two heads of sixteen.
    assert sizes == (2 * 2 * 2 * 16 * 4, 2 * 2 * 2 * 16 * bits // 8)


@pytest.mark.parametrize("bits", [8, 4])
def test_with_float_caches_outside_it_answers_the_same_token_by_token(model, bits):
    changed, _, _ = quantized(model, bits)
    view = graph.clone_model(changed)
    with_float_caches(view)
    inside, outside = run(changed, TOKENS[:, :8]), run(view, TOKENS[:, :8])
    for done in range(8, 12):
        np.testing.assert_array_equal(inside["logits"], outside["logits"])
        assert outside["present.1.value"].dtype == np.float32
        token = TOKENS[:, done : done + 1]
        inside = run(changed, token, past(inside), done)
        outside = run(view, token, past(outside), done)
    np.testing.assert_array_equal(inside["logits"], outside["logits"])
    exact = run(model, TOKENS)["logits"][:, -1:]
    error = np.linalg.norm(outside["logits"] - exact) / np.linalg.norm(exact)
    assert error < (0.05 if bits == 8 else 0.6)
    assert [value.dtype for value in view.graph.inputs] == [v.dtype for v in model.graph.inputs]


def test_the_last_axis_is_a_number_which_runtimes_size_the_empty_cache_by(model):
    for bits, width, kind in ((8, 16, ir.DataType.INT8), (4, 8, ir.DataType.UINT8)):
        changed, _, _ = quantized(model, bits)
        values = [*changed.graph.inputs[2:], *changed.graph.outputs[1:]]
        assert {(value.shape[-1], value.dtype) for value in values} == {(width, kind)}


def edited(model, edit):
    changed = graph.clone_model(model)
    edit(changed, next(n for n in changed.graph if n.op_type == "GroupQueryAttention"))
    return changed


def hand_out_twice(model, node):
    extra = ir.node("Abs", [node.outputs[1]], name="extra")
    model.graph.append(extra)


def normalize(model, node):
    node.resize_inputs(16)
    node.replace_input_with(14, node.inputs[7])


def ring_of_odd_heads(model, node):
    node.attributes["sliding_window_cache"] = ir.AttrInt64("sliding_window_cache", 1)
    for value in model.graph.inputs:
        if "past" in value.name:
            value.shape = ir.Shape([*list(value.shape)[:-1], 24])


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (hand_out_twice, "read by other nodes"),
        (normalize, "does not normalize queries and keys"),
        (ring_of_odd_heads, "heads of a multiple of 16, and these have 24"),
    ],
)
def test_a_cache_that_cannot_be_integers_is_refused_with_its_reason(model, edit, reason):
    with pytest.raises(ModelError, match=reason):
        find_caches(edited(model, edit), 8)


def test_attention_in_pieces_and_caches_that_are_integers_are_refused(model):
    changed, _, _ = quantized(model, 8)
    with pytest.raises(AlreadyQuantizedError, match="is quantized already"):
        find_caches(changed, 8)
    for node in list(model.graph):
        node.op_type = node.op_type.replace("GroupQueryAttention", "Other")
    with pytest.raises(NothingQuantizedError, match="no node of this model is one with a cache"):
        find_caches(model, 8)


def test_scales_of_another_number_of_channels_are_refused(model):
    plans = {
        cache.node.name: CachePlan(key=(1.0,) * 30, value=(1.0,) * 32)
        for cache in find_caches(model, 8)
    }
    with pytest.raises(ModelError, match="takes one, or one for each channel of its 2 heads"):
        quantize_caches(model, plans, 8)
