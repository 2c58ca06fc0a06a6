"""Calibration, ours against `onnxruntime.quantization`: time and peak memory, side by side.

Each measurement runs in a process of its own, one after the other. `float` is plain inference
over the same samples at ONNX Runtime's defaults. `calibrate` is ours from the samples to the
finished plan, sessions opened included; `whole` is the complete job, which is what the peer's
time is too. Peak memory is given for a few and for many samples. The peer keeps every activation
of every sample for its histogram methods, so it gets only a few samples; its time is scaled to
the same number, its memory is not.

    python benchmarks/calibration.py            all models, about half an hour
    python benchmarks/calibration.py --quick    fewer samples, a few minutes
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from graphs import GRAPHS, write_graph
from measure import Measured, prepare_for_peer, print_table, run_apart
from text_lines import recognizer_path

WORKER = "calibration_worker.py"
# Ours, and the peer's name for the method where it has it.
METHODS = {
    "minmax": "MinMax",
    "percentile": "Percentile",
    "entropy": "Entropy",
    "mse": None,
    "distribution": "Distribution",
}


def best_of(count: int, *arguments: object) -> Measured | str:
    """Repeat and keep the fastest: other work on the machine only ever adds time."""
    results = [run_apart(WORKER, *arguments) for _ in range(count)]
    good = [result for result in results if isinstance(result, Measured)]
    return min(good, key=lambda result: result.seconds) if good else results[0]


def show(value: Measured | str, unit: str) -> str:
    if isinstance(value, str):
        return value
    return f"{value.seconds:.2f} s" if unit == "s" else f"{value.peak:.0f} MB"


def measure_model(name: str, folder: Path, options: argparse.Namespace) -> list[tuple[str, ...]]:
    rows = []
    plain = best_of(options.repeat, "float", name, "-", options.many, folder)
    assert isinstance(plain, Measured), plain
    for method, peer_method in METHODS.items():
        few = run_apart(WORKER, "ours", name, method, options.samples, folder)
        assert isinstance(few, Measured), few
        many = best_of(options.repeat, "ours", name, method, options.many, folder)
        assert isinstance(many, Measured), many
        peer: Measured | str = "has no such method"
        if peer_method is not None and not options.no_peer:
            peer = run_apart(WORKER, "peer", name, peer_method, options.samples, folder)
            if isinstance(peer, Measured):
                scaled = peer.seconds * options.many / options.samples
                peer = Measured(scaled, peer.peak, peer.extra)
        faster = smaller = "-"
        if isinstance(peer, Measured):
            faster = f"{peer.seconds / many.extra['total']:.1f}x"
            smaller = f"{peer.peak / few.peak:.1f}x"
        rows.append(
            (
                name,
                method,
                f"{plain.seconds:.2f} s",
                f"{many.seconds:.2f} s",
                f"{many.seconds / plain.seconds:.2f}x",
                f"{many.extra['total']:.2f} s",
                show(peer, "s"),
                faster,
                f"{few.peak:.0f} MB",
                f"{many.peak:.0f} MB ({many.peak / few.peak - 1:+.1%})",
                show(peer, "MB"),
                smaller,
                f"{1e3 * many.extra['choose']:.0f} ms ({many.extra['choose'] / many.seconds:.2%})",
            )
        )
        print(" | ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=16, help="the few samples")
    parser.add_argument("--many", type=int, default=256, help="the many samples")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--models", nargs="*", default=[*GRAPHS, "recognizer"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.samples, options.many = 4, 32
    rows = []
    with tempfile.TemporaryDirectory(prefix="bitwright-bench-") as name:
        folder = Path(name)
        for model in options.models:
            if model == "recognizer":
                shutil.copyfile(recognizer_path(), folder / "recognizer.onnx")
            else:
                write_graph(model, folder)
            prepare_for_peer(folder / f"{model}.onnx")
            rows += measure_model(model, folder, options)
    print()
    print_table(
        (
            "model",
            "method",
            "float",
            "calibrate",
            "/ float",
            "whole",
            "peer",
            "faster",
            f"peak {options.samples}",
            f"peak {options.many}",
            "peer peak",
            "smaller",
            "another method",
        ),
        rows,
    )


if __name__ == "__main__":
    main()
