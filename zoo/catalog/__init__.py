"""The catalog: which libraries the architectures come from, one file each."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from zoo.network import seed_of
from zoo.runner import Runner, matches

FILES = frozenset({"sklearn", "genai", "files", "nodes"})
"""What is made without torch's exporters."""
LIBRARIES = {
    "rnn": "zoo.catalog.recurrent",
    "torchvision": "zoo.catalog.torchvision_models",
    "timm": "zoo.catalog.timm_models",
    "transformers": "zoo.catalog.transformers_models",
    "transformers-older": "zoo.catalog.transformers_older",
    "diffusers": "zoo.catalog.diffusers_models",
    "segmentation": "zoo.catalog.segmentation",
    "torchaudio": "zoo.catalog.torchaudio_models",
    "heads": "zoo.catalog.detection_heads",
    "sklearn": "zoo.catalog.sklearn_models",
    "keras": "zoo.catalog.keras_models",
    "genai": "zoo.catalog.genai",
    "files": "zoo.catalog.files",
    "nodes": "zoo.catalog.node_tests",
}
"""Each of these modules has either `architectures()`, which gives what the exporters turn into
models, or `models(folder)`, which gives models that are files already. `PRELOAD` names what is
imported once, before a process is forked for each architecture."""


def run_library(name: str, runner: Runner, patterns: Sequence[str], part: tuple[int, int]) -> None:
    """Try the verbs on everything of one library, in an order that mixes families."""
    module = importlib.import_module(LIBRARIES[name])
    for needed in getattr(module, "PRELOAD", ()):
        importlib.import_module(needed)
    if hasattr(module, "models"):
        for model in module.models(runner.folder / "models"):
            if matches(model.architecture, patterns) and _is_in(model.architecture, part):
                runner.try_verbs(model)
        return
    found = [a for a in module.architectures() if matches(a.name, patterns)]
    for architecture in sorted(found, key=lambda a: seed_of(a.name)):
        if _is_in(architecture.name, part):
            runner.run_architecture(architecture)


def _is_in(name: str, part: tuple[int, int]) -> bool:
    index, count = part
    return seed_of(name) % count == index
