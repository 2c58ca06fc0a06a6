"""Errors of units on one sample, by which `tune` chooses those of many that it measures on more.

What that saves, and how well it ranks units:

    pip install scikit-learn scipy pillow
    python benchmarks/unit_errors.py --models direction recognizer

"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np
from measure import print_table
from tune import MODELS

from bitwright import load_recipe
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.improve.effort import plan_with_effort
from bitwright.jobs.opening import open_model
from bitwright.jobs.output import Planned, open_quantized
from bitwright.jobs.tuning.units import open_unit_variants

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
    exact = np.array([*variants.losses().values()])
    exact_seconds, start = time.process_time() - start, time.process_time()
    guessed = np.array([*replace(variants, samples=variants.samples[:1]).losses().values()])
    seconds = time.process_time() - start
    ranks = [np.argsort(np.argsort(values)) for values in (exact, guessed)]
    orders = [np.argsort(-values) for values in (exact, guessed)]
    needed = [
        int(np.argmax(np.cumsum(exact[order]) >= COVERED * exact.sum())) + 1 for order in orders
    ]
    best, chosen = (order[:TOP] for order in orders)
    return (
        name, f"{len(exact)}", f"{exact_seconds:.1f} s", f"{seconds:.1f} s",
        f"{np.corrcoef(*ranks)[0, 1]:.2f}",
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
        "model", "units", "all samples, CPU", "one sample", "rank correlation",
        f"of the worst {TOP}", "error in these",
        f"units for {COVERED:.0%}, by all samples",
    )  # fmt: skip
    print_table(header, [measure(name) for name in options.models])


if __name__ == "__main__":
    main()
