"""Which exact integer form brings what: a net with all forms beside the net without one of them.

    python benchmarks/forms.py models/*/bitwright.onnx    8-bit Q/DQ models, shapes fixed

A row for each form that a model has a place for: the time with all forms over the time without this
one, in turns on one thread by CPU time, and by how much the outputs differ at most, where their
largest is 1. Only HardSigmoid and HardSwish, and averages between two levels, may differ.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
from measure import print_table

from bitwright.assess.clock import time_models
from bitwright.data import RandomData
from bitwright.emit.forms import FORMS, Form, write_forms
from bitwright.graph import clone_model, load_model
from bitwright.jobs.opening import input_specs
from bitwright.run import Session

ROUNDING = ("write_hard_gates", "write_average_pools")
"""The forms that may round in another way."""
MOST = 1e-3
"""Difference of an exact form's outputs above which it is wrong: a level would be .004."""


def main() -> None:
    rows: list[tuple[str, ...]] = []
    for path in map(Path, sys.argv[1:]):
        model = load_model(path)
        for form in FORMS:
            if (row := measure(model, form)) is not None:
                name = f"{path.parent.name} {path.stem}"
                rows.append((name, form.write.__name__, *row))
                print(*rows[-1], flush=True)
    print_table(("model", "form", "places", "time with it", "difference"), rows)


def measure(model: ir.Model, form: Form) -> tuple[str, ...] | None:
    """Return in how many places a form is written, its time and difference; None: nowhere."""
    both = [clone_model(model), clone_model(model)]
    places = form.write(clone_model(model))
    write_forms(both[0], [other for other in FORMS if other is not form])
    write_forms(both[1])
    if not places:
        return None
    sample = next(iter(RandomData(count=1).samples(input_specs(model))))
    outputs = [Session(one).runtime.run(None, sample) for one in both]
    change = max(
        float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-9))
        for a, b in zip(*outputs, strict=True)
    )
    if change > MOST and form.write.__name__ not in ROUNDING:
        raise SystemExit(f"{form.write.__name__}: outputs differ by {change}")
    clocks = time_models(both, [sample, sample], however_long=True)
    assert clocks is not None
    return str(places), f"{clocks[0].figure()} {clocks[0].interval()}", f"{change:.0e}"


if __name__ == "__main__":
    main()
