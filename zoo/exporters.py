"""Exporters: how a network becomes an ONNX file, and in which variants."""

from __future__ import annotations

import contextlib
import inspect
import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo.network import (
    SAMPLES,
    Architecture,
    Network,
    Samples,
    make_samples,
    randomize,
    seed_of,
    shorten,
)

TORCHSCRIPT_OPSETS = (11, 13, 17, 18, 20)
DYNAMO_OPSETS = (18, 21, 23)


@dataclass(frozen=True, slots=True)
class Export:
    """One file to make: by which exporter, with which opset, and in which variant."""

    exporter: str
    opset: int
    dynamic: bool = False
    external: bool = False
    half: bool = False

    @property
    def variant(self) -> str:
        """The variant's name: `static`, `dynamic-external`, `static-half`."""
        words = ["dynamic" if self.dynamic else "static"]
        words += [w for w, on in (("external", self.external), ("half", self.half)) if on]
        return "-".join(words)

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.exporter}-{self.opset}-{self.variant}"


def choose_exports(architecture: Architecture) -> list[Export]:
    """Return an architecture's exports: opsets and variants are spread over the zoo by name."""
    seed = seed_of(architecture.name)
    # The same for both: in a graph of one size more is constant, so less of it is quantized.
    dynamic = seed // 7 % 2 == 0
    exports = []
    if "torchscript" in architecture.exporters:
        opset = max(TORCHSCRIPT_OPSETS[seed % len(TORCHSCRIPT_OPSETS)], architecture.min_opset)
        exports.append(Export("torchscript", opset, dynamic=dynamic))
    if "dynamo" in architecture.exporters:
        opset = DYNAMO_OPSETS[seed // 3 % len(DYNAMO_OPSETS)]
        exports.append(Export("dynamo", opset, dynamic=dynamic, external=seed // 13 % 3 == 0))
    if architecture.half and "torchscript" in architecture.exporters and seed // 17 % 8 == 0:
        exports.append(Export("torchscript", 17, half=True))
    return exports


def build(architecture: Architecture) -> Network:
    """Return the network with seeded weights, without repetition, in eval mode."""
    import torch

    seed = seed_of(architecture.name)
    torch.manual_seed(seed)
    network = shorten(architecture.build())
    randomize(network.module, seed)
    for parameter in network.module.parameters():
        parameter.requires_grad_(False)
    return network


def samples_of(network: Network, name: str, *, half: bool) -> Samples:
    """Return the samples of an architecture."""
    samples = make_samples(network.inputs, SAMPLES, seed_of(name))
    if half:
        return [{k: _to_half(v) for k, v in sample.items()} for sample in samples]
    return samples


def _to_half(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float16) if array.dtype == np.float32 else array


def write_export(network: Network, export: Export, samples: Samples, path: Path) -> None:
    """Export a network; what it raises is the exporter's, not ours."""
    import torch

    module = network.module.eval()
    module = module.half() if export.half else module.float()
    arguments = tuple(torch.from_numpy(samples[0][one.name]) for one in network.inputs)
    options: dict[str, Any] = {
        "input_names": [one.name for one in network.inputs],
        "opset_version": export.opset,
        "external_data": export.external,
        **(_dynamic_options(network, export) if export.dynamic else {}),
    }
    quiet = io.StringIO()
    with (
        torch.no_grad(),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(quiet),
        contextlib.redirect_stderr(quiet),
    ):
        warnings.simplefilter("ignore")
        if export.exporter == "torchscript":
            # The older exporter has no external data below 2 GB.
            del options["external_data"]
            torch.onnx.export(
                module, arguments, str(path), dynamo=False, do_constant_folding=True, **options
            )
        else:
            torch.onnx.export(
                module, arguments, str(path), dynamo=True, optimize=True, verbose=False, **options
            )


def _dynamic_options(network: Network, export: Export) -> dict[str, Any]:
    import torch

    axes = {
        one.name: {axis: f"{one.name}_{axis}" for axis in one.dynamic} for one in network.inputs
    }
    if export.exporter == "torchscript":
        return {"dynamic_axes": axes}
    auto = torch.export.Dim.AUTO
    shapes = [dict.fromkeys(axes[one.name], auto) for one in network.inputs]
    kinds = [p.kind for p in inspect.signature(network.module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return {"dynamic_shapes": tuple(shapes)}
    # What a star takes is one argument, a tuple.
    named = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    return {"dynamic_shapes": (*shapes[:named], tuple(shapes[named:]))}
