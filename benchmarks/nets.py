"""Nets that speed is measured on: classifiers, detectors, speech, text, and small ones.

    pip install torch && pip install --no-deps torchvision==0.28.0 timm
    python benchmarks/nets.py nets                       all, about ten minutes on two cores
    python benchmarks/nets.py nets --nets resnet18 gru   some of them

Writes `NAME.onnx` and, for each, a folder `NAME` with samples to calibrate on. Weights are random
with a seed, and batch norms have the statistics that they see, so that values have sizes as in a
trained net; `TRAINED` are real models, and their samples are those of `accuracy_tasks.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from graphs import make_images

sys.path.insert(0, str(Path(__file__).parents[1]))
from zoo.exporters import Export, write_export
from zoo.network import Input, Network, Samples, make_samples, randomize, seed_of

SAMPLES = 16
OPSET = 17
SETTLING = 8
"""Samples that batch norms take their statistics from."""

TRAINED = {
    "ppocrv4_det": "detector",
    "ppocrv4_rec": "recognizer",
    "ppocrv4_cls": "direction",
    "yolov8n": "yolov8n",
    "silero_vad": "silero-vad",
    "magika": "magika",
    "minilm": "sentences",
}
"""Models of packages, and the task of `accuracy_tasks.py` that has each."""
TRANSFORMERS = ("vit_small", "minilm")


def _image(size: int = 224) -> Input:
    return Input("image", (1, 3, size, size))


def _torchvision(name: str, **options: Any) -> Network:
    import zoo.catalog.torchvision_operators  # noqa: F401, I001 (before the first import of it)
    from torchvision import models

    return Network(models.get_model(name, weights=None, **options), (_image(),))


def _detector(name: str) -> Network:
    """Return a detector of torchvision up to its heads."""
    from zoo.catalog.torchvision_models import architectures

    [found] = [a for a in architectures() if a.name == f"torchvision/{name}-heads"]
    return Network(found.build().module, (_image(320),))


def _timm(name: str, size: int = 224) -> Network:
    import zoo.catalog.torchvision_operators  # noqa: F401, I001 (before the first import of it)
    import timm
    from timm.layers import set_fused_attn

    set_fused_attn(enable=False)
    return Network(timm.create_model(name), (_image(size),))


def _own(name: str, *shape: int) -> Network:
    import own_nets

    image = len(shape) == 4
    return Network(getattr(own_nets, name)(), (Input("image" if image else "x", shape),))


NETS: dict[str, Callable[[], Network]] = {
    **{
        name: partial(_torchvision, name)
        for name in (
            "mobilenet_v2 mobilenet_v3_small mobilenet_v3_large efficientnet_b0 regnet_y_400mf "
            "shufflenet_v2_x1_0 mnasnet1_0 resnet18 resnet50 resnext50_32x4d squeezenet1_1 "
            "densenet121"
        ).split()
    },
    "googlenet": partial(_torchvision, "googlenet", init_weights=False, aux_logits=False),
    # At the usual 1e-6 an untrained net is its skip connections alone.
    "convnext_tiny": partial(_torchvision, "convnext_tiny", layer_scale=0.3),
    "efficientnet_lite0": partial(_timm, "tf_efficientnet_lite0"),
    "vit_small": partial(_timm, "vit_small_patch16_224"),
    "mobilevit_s": partial(_timm, "mobilevit_s", 256),
    "ghostnet": partial(_timm, "ghostnet_100"),
    "ssdlite_heads": partial(_detector, "ssdlite320_mobilenet_v3_large"),
    "unet": partial(_own, "UNet", 1, 3, 128, 128),
    "hifigan": partial(_own, "Vocoder", 1, 80, 64),
    "mlp": partial(_own, "row_network", 1, 64),
    "gru": partial(_own, "Spotter", 1, 50, 40),
    "small_pools": partial(_own, "SmallPools", 1, 3, 96, 96),
    "resnext_like": partial(_own, "SmallResNeXt", 1, 3, 224, 224),
    "pyramid": partial(_own, "Pyramid", 1, 3, 160, 160),
}
ALL = (*NETS, *TRAINED)


def draw(inputs: tuple[Input, ...], count: int, seed: int) -> Samples:
    """Return samples: smooth random pictures for images, normal numbers for all else."""
    [one] = inputs
    if one.name != "image":
        return make_samples(inputs, count, seed)
    size = one.shape[-1]
    return [{"image": image[None]} for image in make_images(count, seed, size)]


def settle(network: Network, seed: int) -> None:
    """Let batch norms see samples, and keep the statistics of these."""
    import torch

    norms = [part for part in network.module.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    samples = draw(network.inputs, SETTLING, seed)
    batch = np.concatenate([next(iter(sample.values())) for sample in samples])
    with torch.no_grad():
        network.module(torch.from_numpy(batch))
    network.module.eval()


def make(name: str, path: Path) -> Samples:
    """Write a net and return its samples to calibrate on."""
    if name in TRAINED:
        from accuracy_tasks import TASKS

        task = TASKS[TRAINED[name]](SAMPLES)
        onnx.save(task.model, path)
        return task.calibration
    import torch

    seed = seed_of(name)
    torch.manual_seed(seed)
    network = NETS[name]()
    randomize(network.module, seed)
    settle(network, seed)
    samples = draw(network.inputs, SAMPLES, seed + 1)
    write_export(network, Export("torchscript", OPSET), samples, path)
    return samples


def write_net(name: str, folder: Path) -> Path:
    """Return the file of a net, which is made with its samples where it is not there."""
    path, data = folder / f"{name}.onnx", folder / name
    if not path.exists():
        data.mkdir(parents=True, exist_ok=True)
        partial_path = path.with_suffix(".partial")
        for index, sample in enumerate(make(name, partial_path)):
            np.savez(data / f"{index:04d}.npz", **sample)
        partial_path.replace(path)
    return path


def read_samples(net: Path) -> Samples:
    """Return the samples that were written with a net."""
    found = []
    for path in sorted(net.with_suffix("").glob("*.npz")):
        with np.load(path) as arrays:
            found.append(dict(arrays))
    return found


def main() -> None:
    """Write the nets that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nets", nargs="*", default=ALL, choices=ALL)
    options = parser.parse_args()
    for name in options.nets:
        path = write_net(name, options.folder)
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
