"""Errors of units by gradients, by which `tune` chooses those of many that it measures exactly.

What they save, and how well they rank units (`bitwright.learning.attribution`):

    pip install torch scikit-learn scipy pillow
    python benchmarks/attribution.py --models direction recognizer

"""

from __future__ import annotations

import argparse
import time

import numpy as np
from measure import print_table
from tune import MODELS

from bitwright import load_recipe
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.improve.effort import plan_with_effort
from bitwright.jobs.opening import open_model
from bitwright.jobs.output import Planned, open_quantized
from bitwright.jobs.tuning.units import attribute_nodes, open_unit_variants

TOP, COVERED = 16, 0.95


def measure(name: str) -> tuple[str, ...]:
    task = MODELS[name](32, 16)
    recipe = load_recipe(None, None)
    prepared = open_model(task.model, recipe, None)
    calibration = Calibration(task.calibration, holdout=False, progress=False)
    plan = plan_with_effort(prepared, "low", calibration)
    written = open_quantized(prepared, Planned(plan))
    variants = open_unit_variants(prepared, written.plan, written.model, task.calibration[:8])
    start = time.process_time()
    alone = variants.run("alone")
    exact_seconds, start = time.process_time() - start, time.process_time()
    import torch  # what it takes to load is a part of the price

    import_seconds, start = time.process_time() - start, time.process_time()
    torch.set_num_threads(1)
    found = attribute_nodes(variants)
    assert found is not None  # torch can run these models
    seconds = time.process_time() - start
    exact = np.array([alone[place,].loss for place in variants.unit_of.values()])
    guessed = np.array([found[unit] for unit in variants.unit_of])
    ranks = [np.argsort(np.argsort(values)) for values in (exact, guessed)]
    orders = [np.argsort(-values) for values in (exact, guessed)]
    needed = [
        int(np.argmax(np.cumsum(exact[order]) >= COVERED * exact.sum())) + 1 for order in orders
    ]
    best, chosen = (order[:TOP] for order in orders)
    return (
        name, f"{len(exact)}", f"{exact_seconds:.1f} s", f"{seconds:.1f} s",
        f"{import_seconds:.1f} s", f"{np.corrcoef(*ranks)[0, 1]:.2f}",
        f"{len({*best} & {*chosen})}",
        f"{exact[chosen].sum() / exact.sum():.0%} of {exact[best].sum() / exact.sum():.0%}",
        f"{needed[1]}, {needed[0]}",
    )  # fmt: skip


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=["direction"], choices=[*MODELS])
    options = parser.parse_args()
    header = (
        "model", "units", "exact, CPU", "by gradients", "loading torch", "rank correlation",
        f"of the worst {TOP}", "error in these",
        f"units for {COVERED:.0%}, exactly",
    )  # fmt: skip
    print_table(header, [measure(name) for name in options.models])


if __name__ == "__main__":
    main()
