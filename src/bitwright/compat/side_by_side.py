"""A script run with the tool it was made for and with ours, and the models of both compared."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bitwright import api, graph
from bitwright.data import RandomData
from bitwright.errors import BitwrightError
from bitwright.jobs.opening import input_specs


def run_beside_peer(words: Sequence[str]) -> int:
    """Run `compat run` with the tool itself, then with ours; print both, return our exit code."""
    rest = [*words]
    rest.remove("--side-by-side")
    with tempfile.TemporaryDirectory(prefix="bitwright-") as folder:
        peer = _Run.of(["run", "--as", "none", *rest[1:]], Path(folder, "peer"))
        ours = _Run.of(rest, Path(folder, "ours"))
        print(f"\n{'':24}{'the tool':>16}{'Bitwright':>16}", file=sys.stderr)
        _print_row("seconds of the script", *(f"{run.seconds:.1f}" for run in (peer, ours)))
        if peer.code:
            print(f"the tool itself ended with code {peer.code}; is it installed?", file=sys.stderr)
        for path in ours.models if not peer.code else ():
            if path in peer.models:
                _print_pair(path, peer, ours)
            else:
                print(f"{path}: the tool wrote none", file=sys.stderr)
    return ours.code


@dataclass(frozen=True, slots=True)
class _Run:
    """What a run of the script left."""

    folder: Path
    code: int
    seconds: float
    read: list[str]
    models: dict[str, Path]
    """Path that the script wrote -> a copy of it."""

    @staticmethod
    def of(words: Sequence[str], folder: Path) -> _Run:
        """Run in a process of its own, and copy the models that it wrote."""
        folder.mkdir()
        command = [sys.executable, "-m", "bitwright.compat", "run", "--record", str(folder)]
        code = subprocess.run([*command, *words[1:]], check=False).returncode
        noted = json.loads((folder / "run.json").read_text())
        models = {}
        for number, path in enumerate(filter(_exists, noted["written"])):
            models[path] = folder / f"{number}.onnx"
            graph.save_model(graph.load_model(path), models[path])
        read = [path for path in filter(_exists, noted["read"]) if path not in models]
        return _Run(folder, code, noted["seconds"], read, models)

    def samples(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return what the script ran models with these inputs on."""
        loaded = (dict(np.load(file)) for file in sorted(self.folder.glob("*.npz")))
        return [sample for sample in loaded if sorted(sample) == sorted(names)]


def _exists(path: str) -> bool:
    return Path(path).is_file()


def _print_pair(path: str, peer: _Run, ours: _Run) -> None:
    """Print size, error and time of a model that both wrote."""
    print(path, file=sys.stderr)
    pair = [str(run.models[path]) for run in (peer, ours)]
    _print_row("  bytes", *(str(Path(each).stat().st_size) for each in pair))
    names = [spec.name for spec in input_specs(graph.load_model(pair[1]))]
    data: Any = peer.samples(names) or ours.samples(names) or RandomData()
    for reference in dict.fromkeys([*ours.read, *peer.read]):
        try:
            if [s.name for s in input_specs(graph.load_model(reference))] != names:
                continue
            found = [api.compare(reference, each, data=data, progress=False) for each in pair]
            worst = [min(output.sqnr for output in each.outputs) for each in found]
            _print_row(f"  dB on {found[1].samples} samples", *(f"{each:.1f}" for each in worst))
            times = api.bench(
                [reference, *pair], data=data, seconds=1.0, profile=False, progress=False
            )
            gains = (f"x {times.speedup(index):.2f}" for index in (1, 2))
            _print_row(f"  speed of {Path(reference).name}", *gains)
        except BitwrightError as error:
            print(f"  not compared with {reference}: {error}", file=sys.stderr)
        return
    print("  the script read no float model with these inputs to compare with", file=sys.stderr)


def _print_row(what: str, theirs: str, ours: str) -> None:
    print(f"{what:24}{theirs:>16}{ours:>16}", file=sys.stderr)
