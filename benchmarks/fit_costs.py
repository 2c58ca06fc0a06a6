"""Measure a cost table on this machine, and print how well it explains what was measured.

    python benchmarks/fit_costs.py [table.json] [--seconds 60]

`bitwright bench --costs` writes the same table. This script needs no installed bitwright: with
numpy, onnx, onnx_ir, onnxruntime, msgspec and ml_dtypes it runs from a checkout.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Measure, fit, print, and write where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "src"))
    from bitwright.jobs.cost_table import agreement, make_table, measure_times
    from bitwright.jobs.micro_nets import micro_nets
    from bitwright.targets.costs import write_costs

    timings = measure_times(list(micro_nets()), options.seconds)
    table = make_table(timings)
    print(f"{table.cpu}: {table.processor} ({' '.join(table.flags)}), {table.versions}")
    heads = ("kernel", "call", "macs", "read", "written", "uncached", "nodes")
    print("{:24}{:>9}{:>9}{:>9}{:>9}{:>9}{:>7}  estimated / measured".format(*heads))
    ratios = agreement(table, timings)
    for name, cost in sorted(table.kernels.items()):
        found = sorted(ratios.get(name, ()))
        spread = f"{found[0]:.2f} {statistics.median(found):.2f} {found[-1]:.2f}" if found else ""
        prices = (cost.call, cost.macs, cost.read, cost.written, cost.uncached)
        print(f"{name:24}" + "".join(f"{p:9.3g}" for p in prices) + f"{len(found):7}   {spread}")
    if options.table is not None:
        write_costs(table, options.table)


if __name__ == "__main__":
    main()
