"""Networks of diffusers: denoising UNets and transformers, autoencoders, control networks."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

import zoo.catalog.torchvision_operators  # noqa: F401 (defines them before the first import)
from zoo.network import Architecture, Input, Network

PRELOAD = ("diffusers",)
_BLOCKS = {"block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1}
_IMAGE = Input("sample", (1, 4, 16, 16))
_STEP = Input("timestep", (1,), "tokens", 1000, dynamic=())
_TEXT = Input("encoder_hidden_states", (1, 5, 16))

NETWORKS: dict[str, tuple[str, dict[str, Any], tuple[Input, ...]]] = {
    "unet": (
        "UNet2DModel",
        {
            **_BLOCKS,
            "sample_size": 16,
            "in_channels": 4,
            "out_channels": 4,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
            "attention_head_dim": 4,
        },
        (_IMAGE, _STEP),
    ),
    "unet-conditional": (
        "UNet2DConditionModel",
        {
            **_BLOCKS,
            "sample_size": 16,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
            "cross_attention_dim": 16,
            "attention_head_dim": 4,
        },
        (_IMAGE, _STEP, _TEXT),
    ),
    "unet-1d": (
        "UNet1DModel",
        {
            "block_out_channels": (32, 64),  # a head has 32
            "sample_size": 16,
            "in_channels": 4,
            "out_channels": 4,
            "down_block_types": ("DownBlock1D", "AttnDownBlock1D"),
            "up_block_types": ("AttnUpBlock1D", "UpBlock1D"),
        },
        (Input("sample", (1, 4, 16)), _STEP),
    ),
    "unet-3d": (
        "UNet3DConditionModel",
        {
            **_BLOCKS,
            "sample_size": 16,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
            "cross_attention_dim": 16,
            "attention_head_dim": 4,
        },
        (Input("sample", (1, 4, 2, 16, 16)), _STEP, _TEXT),
    ),
    "vae": (
        "AutoencoderKL",
        {
            **_BLOCKS,
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": 4,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
        },
        (Input("sample", (1, 3, 16, 16)),),
    ),
    "vae-tiny": (
        "AutoencoderTiny",
        {
            "encoder_block_out_channels": (8, 8),
            "decoder_block_out_channels": (8, 8),
            "num_encoder_blocks": (1, 2),
            "num_decoder_blocks": (2, 1),
        },
        (Input("sample", (1, 3, 16, 16)),),
    ),
    "dit": (
        "DiTTransformer2DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 2,
            "sample_size": 8,
            "patch_size": 2,
            "num_embeds_ada_norm": 10,
        },
        (
            Input("hidden_states", (1, 4, 8, 8)),
            _STEP,
            Input("class_labels", (1,), "tokens", 10, dynamic=()),
        ),
    ),
    "sd3": (
        "SD3Transformer2DModel",
        {
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 2,
            "joint_attention_dim": 16,
            "caption_projection_dim": 16,
            "pooled_projection_dim": 16,
            "pos_embed_max_size": 8,
        },
        (
            Input("hidden_states", (1, 4, 8, 8)),
            _TEXT,
            Input("pooled_projections", (1, 16)),
            _STEP,
        ),
    ),
    "pixart": (
        "PixArtTransformer2DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 4,
            "out_channels": 8,
            "num_layers": 2,
            "sample_size": 8,
            "patch_size": 2,
            "cross_attention_dim": 16,
            "caption_channels": 16,
        },
        (Input("hidden_states", (1, 4, 8, 8)), _TEXT, _STEP),
    ),
    "transformer-2d": (
        "Transformer2DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 16,
            "norm_num_groups": 4,
            "cross_attention_dim": 16,
        },
        (Input("hidden_states", (1, 16, 8, 8)), _TEXT),
    ),
    "prior": (
        "PriorTransformer",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_layers": 2,
            "embedding_dim": 16,
            "num_embeddings": 5,
            "additional_embeddings": 4,
        },
        (
            Input("hidden_states", (1, 16)),
            _STEP,
            Input("proj_embedding", (1, 16)),
            _TEXT,
        ),
    ),
    "vq": (
        "VQModel",
        {
            **_BLOCKS,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "latent_channels": 3,
        },
        (Input("sample", (1, 3, 16, 16)),),
    ),
}


class _Named(nn.Module):
    """A model that takes its inputs in order and gives its first tensor."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        found = self.module(**dict(zip(self.names, values, strict=True)), return_dict=False)
        return found[0]


def _build(name: str) -> Network:
    import diffusers

    class_name, options, inputs = NETWORKS[name]
    module = getattr(diffusers, class_name)(**options)
    return Network(_Named(module, [one.name for one in inputs]), inputs)


def architectures() -> list[Architecture]:
    """Return every network of the table."""
    return [
        Architecture(f"diffusers/{name}", partial(_build, name), min_opset=17) for name in NETWORKS
    ]
