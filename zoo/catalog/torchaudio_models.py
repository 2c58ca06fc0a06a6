"""Speech networks of torchaudio, which is imported from a folder of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from zoo.network import Architecture, Input, Network

_FOLDER = os.environ.get("ZOO_SPEECH", str(Path(sys.prefix) / "speech"))


def _models() -> Any:
    """Import torchaudio's models without its compiled operators, which they do not use."""
    if _FOLDER not in sys.path:
        sys.path.insert(0, _FOLDER)
    absent = ModuleType("torchaudio._extension")
    vars(absent).update(
        _IS_TORCHAUDIO_EXT_AVAILABLE=False,
        _IS_ALIGN_AVAILABLE=False,
        fail_if_no_align=lambda function: function,
    )
    sys.modules.setdefault(absent.__name__, absent)
    import torchaudio.models

    return torchaudio.models


class _First(nn.Module):
    """The first output of a module, called with lengths where it wants them."""

    def __init__(self, module: nn.Module, lengths: int | None = None) -> None:
        super().__init__()
        self.module, self.lengths = module, lengths

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.lengths is None:
            found = self.module(x)
        else:
            found = self.module(x, torch.tensor([self.lengths]))
        return found[0] if isinstance(found, tuple) else found


def _build(name: str) -> Network:
    library = _models()
    make, shape, lengths = NETWORKS[name]
    return Network(_First(make(library), lengths), (Input("x", shape),))


NETWORKS: dict[str, tuple[Callable[[Any], nn.Module], tuple[int, ...], int | None]] = {
    "wav2letter": (lambda m: m.Wav2Letter(num_classes=10, num_features=16), (1, 16, 40), None),
    "deepspeech": (
        lambda m: m.DeepSpeech(n_feature=16, n_hidden=32, n_class=10),
        (1, 1, 12, 16),
        None,
    ),
    "conformer": (
        lambda m: m.Conformer(
            input_dim=32, num_heads=4, ffn_dim=64, num_layers=2, depthwise_conv_kernel_size=7
        ),
        (1, 12, 32),
        12,
    ),
    "emformer": (
        lambda m: m.Emformer(input_dim=32, num_heads=4, ffn_dim=64, num_layers=2, segment_length=4),
        (1, 12, 32),
        12,
    ),
    "convtasnet": (
        lambda m: m.ConvTasNet(
            num_sources=2,
            enc_kernel_size=8,
            enc_num_feats=16,
            msk_num_feats=16,
            msk_num_hidden_feats=32,
            msk_num_layers=2,
            msk_num_stacks=1,
        ),
        (1, 1, 400),
        None,
    ),
    "hdemucs": (
        lambda m: m.HDemucs(sources=["a", "b"], channels=8, nfft=256, depth=3),
        (1, 2, 2048),
        None,
    ),
    "wav2vec2": (
        lambda m: m.wav2vec2_model(
            extractor_mode="group_norm",
            extractor_conv_layer_config=[(16, 10, 5), (16, 3, 2), (16, 3, 2)],
            extractor_conv_bias=False,
            encoder_embed_dim=32,
            encoder_projection_dropout=0.0,
            encoder_pos_conv_kernel=16,
            encoder_pos_conv_groups=4,
            encoder_num_layers=2,
            encoder_num_heads=4,
            encoder_attention_dropout=0.0,
            encoder_ff_interm_features=64,
            encoder_ff_interm_dropout=0.0,
            encoder_dropout=0.0,
            encoder_layer_norm_first=False,
            encoder_layer_drop=0.0,
            aux_num_out=10,
        ),
        (1, 800),
        None,
    ),
}


def architectures() -> list[Architecture]:
    """Return every network of the table."""
    return [Architecture(f"torchaudio/{name}", partial(_build, name)) for name in NETWORKS]
