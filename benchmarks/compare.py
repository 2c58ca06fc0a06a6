"""`bitwright compare` beside running both models plainly: time, and peak memory as samples grow.

Each measurement runs in a process of its own. `plain` runs the float and the quantized model over
the samples, one after the other, at the defaults of ONNX Runtime, sessions opened included.
`compare` is ours from the two files to all errors, local and accumulated.

    python benchmarks/compare.py            ResNet-50, 64 samples for time, 16 and 256 for memory
    python benchmarks/compare.py --quick    fewer samples
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from graphs import GRAPHS, write_graph
from measure import Measured, print_table, run_apart

WORKER = "compare_worker.py"


def best_of(count: int, *arguments: object) -> Measured:
    """Repeat and keep the fastest: other work on the machine only ever adds time."""
    results = [run_apart(WORKER, *arguments) for _ in range(count)]
    good = [result for result in results if isinstance(result, Measured)]
    if not good:
        raise SystemExit(f"{arguments}: {results[0]}")
    return min(good, key=lambda result: result.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=["resnet50"], choices=list(GRAPHS))
    parser.add_argument("--timed", type=int, default=64, help="samples for the time")
    parser.add_argument("--few", type=int, default=16)
    parser.add_argument("--many", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.timed, options.few, options.many = 8, 2, 16
    rows = []
    with tempfile.TemporaryDirectory(prefix="bitwright-bench-") as name:
        folder = Path(name)
        for model in options.models:
            write_graph(model, folder)
            best_of(1, "quantize", model, 4, folder)
            plain = best_of(options.repeat, "plain", model, options.timed, folder)
            ours = best_of(options.repeat, "compare", model, options.timed, folder)
            few = best_of(1, "compare", model, options.few, folder)
            many = best_of(1, "compare", model, options.many, folder)
            rows.append(
                (
                    model,
                    f"{plain.seconds:.1f} s",
                    f"{ours.seconds:.1f} s",
                    f"{ours.seconds / plain.seconds:.2f}x",
                    f"{plain.peak:.0f} MB",
                    f"{few.peak:.0f} MB",
                    f"{many.peak:.0f} MB ({many.peak / few.peak - 1:+.1%})",
                )
            )
    print_table(
        (
            "model",
            f"both plainly, {options.timed} samples",
            "compare",
            "/ plain",
            "peak plain",
            f"peak {options.few}",
            f"peak {options.many}",
        ),
        rows,
    )


if __name__ == "__main__":
    main()
