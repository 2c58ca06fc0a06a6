"""A script run with the tool it was made for and with ours, and the models of both compared."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from bitwright import api, graph
from bitwright.data import RandomData
from bitwright.errors import BitwrightError
from bitwright.jobs.opening import input_specs

_SAMPLES = 16
"""How many are kept of what a script runs models on, to compare results with."""


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


@contextmanager
def record_run(folder: Path) -> Iterator[None]:
    """Note the time of a run and its model files, and keep samples that it runs models on."""
    noted: dict[str, Any] = {"read": [], "written": []}
    original, kept = onnxruntime.InferenceSession.run, Counter[str]()

    def watch(event: str, details: tuple[Any, ...]) -> None:
        renamed = event == "os.rename"
        if renamed or event == "open":
            path = Path(str(details[1] if renamed else details[0])).absolute()
            writes = renamed or any(letter in "wax+" for letter in str(details[1]))
            known = noted["written" if writes else "read"]
            if path.suffix == ".onnx" and str(path) not in known:
                known.append(str(path))

    def run(session: Any, outputs: Any, feeds: Any, *others: Any) -> Any:
        group = "_".join(sorted(feeds))
        kept[group] += 1
        if kept[group] <= _SAMPLES and all(isinstance(x, np.ndarray) for x in feeds.values()):
            np.savez(folder / f"{[*kept].index(group)}_{kept[group]:02d}.npz", **feeds)
        return original(session, outputs, feeds, *others)

    sys.addaudithook(watch)
    onnxruntime.InferenceSession.run = run
    started = time.perf_counter()
    try:
        yield
    finally:
        noted["seconds"] = time.perf_counter() - started
        (folder / "run.json").write_text(json.dumps(noted))


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
        models: dict[str, Path] = {}
        for path in (path for path in noted["written"] if Path(path).is_file()):
            models[path] = folder / f"{len(models)}.onnx"
            graph.save_model(graph.load_model(path), models[path])
        read = [path for path in noted["read"] if Path(path).is_file() and path not in models]
        return _Run(folder, code, noted["seconds"], read, models)

    def samples(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return what the script ran models with these inputs on."""
        loaded = (dict(np.load(file)) for file in sorted(self.folder.glob("*.npz")))
        return [sample for sample in loaded if sorted(sample) == sorted(names)]


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
