"""QDQ models of every operator beside ONNX Runtime's own: the same pairs, not a larger error."""

from __future__ import annotations

import pytest
from support.models import ops, quality
from support.op_models import OP_MODELS, op_samples
from support.peer_runs import peer, quantize_both, quiet  # noqa: F401 (a fixture)

# What the peer quantizes when no op types are named: its QDQ table and the generic ones.
TABLE = sorted({*peer.registry.QLinearOpsRegistry, *peer.registry.QDQRegistry} & OP_MODELS.keys())

SETTINGS = {
    "default": {},
    "uint8 activations": {"activation_type": "QUInt8"},
    "per channel": {"activation_type": "QUInt8", "per_channel": True},
    "16-bit activations": {"activation_type": "QUInt16"},
}


# The peer does not know the type of its result, and leaves it and what follows float.
TABLE.remove("EmbedLayerNormalization")


def both(folder, op_type, settings):
    model = OP_MODELS[op_type]()
    samples = op_samples(model)
    mine, theirs = quantize_both(folder, model, samples, **SETTINGS[settings])
    return model, samples, mine, theirs


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("op_type", TABLE)
@pytest.mark.sampled(40)
def test_the_ops_are_the_peers(tmp_path, op_type, settings):
    *_, mine, theirs = both(tmp_path, op_type, settings)
    assert ops(mine) == ops(theirs)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("op_type", TABLE)
@pytest.mark.sampled(40)
def test_the_error_is_not_larger_than_the_peers(tmp_path, op_type, settings):
    model, samples, mine, theirs = both(tmp_path, op_type, settings)
    assert quality(model, mine, samples) > quality(model, theirs, samples) - 0.5
