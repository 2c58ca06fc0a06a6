"""QOperator models beside ONNX Runtime's own: the same integer ops, and not a larger error."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import (
    INT64,
    build,
    info,
    make_cnn,
    make_samples,
    make_transformer,
    node,
    normal,
    ops,
    quality,
    weight,
)
from support.op_models import OP_MODELS, op_samples
from support.peer_runs import peer, quantize_both, quiet  # noqa: F401 (a fixture)

# The table of the peer's QLinear mode.
TABLE = sorted(peer.registry.QLinearOpsRegistry)

SETTINGS = {
    "default": {},
    "uint8 activations": {"activation_type": "QUInt8"},
    "per channel": {"activation_type": "QUInt8", "per_channel": True},
    "uint8 both": {"activation_type": "QUInt8", "weight_type": "QUInt8"},
}


def make_table():
    """A Gather of a table: of activations the peer leaves it float, and we do not."""
    nodes = [
        node("Gather", ["table", "ids"], ["k"], name="op"),
        node("MatMul", ["k", "w"], ["y"], name="after"),
    ]
    constants = {"table": normal(200, 64, seed=1), "w": weight(64, 4, seed=2)}
    return build(nodes, [info("ids", [200], INT64)], {"y": [200, 4]}, constants)


def both(folder, op_type, **options):
    model = make_table() if op_type == "Gather" else OP_MODELS[op_type]()
    samples = op_samples(model)
    if op_type == "Gather":  # every row of the table: a few are a matter of luck
        samples = [{"ids": np.arange(200)}]
    if op_type == "Where":
        # The peer's only way to an integer Where; ours needs no option.
        options["extra_options"] = {"ForceQuantizeNoInputCheck": True}
    if op_type == "EmbedLayerNormalization":
        # Any op behind it stops the peer, which then does not know the type of its result.
        options["op_types_to_quantize"] = [op_type]
    mine, theirs = quantize_both(folder, model, samples, quant_format="QOperator", **options)
    return model, samples, mine, theirs


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("op_type", TABLE)
@pytest.mark.sampled(30)
def test_the_ops_are_the_peers(tmp_path, op_type, settings):
    *_, mine, theirs = both(tmp_path, op_type, **SETTINGS[settings])
    assert ops(mine) == ops(theirs)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("op_type", TABLE)
@pytest.mark.sampled(30)
def test_the_error_is_not_larger_than_the_peers(tmp_path, op_type, settings):
    model, samples, mine, theirs = both(tmp_path, op_type, **SETTINGS[settings])
    assert quality(model, mine, samples) > quality(model, theirs, samples) - 0.5


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("make", [make_cnn, make_transformer])
@pytest.mark.sampled(3)
def test_whole_models_are_not_worse_than_the_peers(tmp_path, make, settings):
    model = make()
    samples = make_samples(model)
    mine, theirs = quantize_both(
        tmp_path, model, samples, quant_format="QOperator", **SETTINGS[settings]
    )
    assert quality(model, mine, samples) > quality(model, theirs, samples) - 0.5
    if make is make_cnn:
        assert ops(mine) == ops(theirs)
