"""Errors of units by gradients, beside those that `tune` measures exactly.

One pass back through the graph in torch gives, for a random direction of the outputs, how much they
change with each unit's tensor; times what rounding changes that tensor by, squared, and its mean
over directions is the unit's error. It takes a few passes for all units together, where exact
errors take a run for each. What it saves, and how well it ranks them:

    pip install torch scikit-learn scipy pillow
    python benchmarks/attribution.py --models direction recognizer

"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import onnx_ir as ir
from measure import print_table
from tune import MODELS

from bitwright.graph import opset_of
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.effort import plan_with_effort
from bitwright.jobs.opening import open_model
from bitwright.jobs.output import Planned, open_quantized
from bitwright.jobs.sensitivity import NodeVariants
from bitwright.jobs.tuning.units import open_unit_variants
from bitwright.numerics.quantize import fake_quantize
from bitwright.plan import QuantPlan
from bitwright.recipe import load_recipe

TOP, COVERED = 16, 0.95


def rounded(plan: QuantPlan, key: str, array: np.ndarray) -> np.ndarray:
    entry, found = plan.tensors[key], plan.parameters(key)
    scale, zero = np.asarray(found.scale), np.asarray(found.zero_point)
    return np.asarray(fake_quantize(array, scale, zero, entry.qtype, axis=entry.axis), np.float32)


class Unit:
    """A unit that can be run by itself on rounded inputs and weights."""

    def __init__(self, plan: QuantPlan, cut: Any, opset: int) -> None:
        import torch

        from bitwright.learning.torch_graph.executor import TorchGraph

        self.plan, self.nodes, self.output = plan, cut.float_nodes, cut.float_value.name
        self.graph = TorchGraph(self.nodes, [self.output], opset=opset)
        made = {value.name for node in self.nodes for value in node.outputs}
        self.weights, self.reads = {}, []
        for node in self.nodes:
            keys = plan.nodes[node.name].inputs if node.name in plan.nodes else ()
            for index, value in enumerate(node.inputs):
                key = keys[index] if index < len(keys) else None
                if value is None or value.name in made:
                    continue
                if value.const_value is None:
                    self.reads.append((value.name, key))
                elif key is not None and plan.tensors[key].role == "weight":
                    array = rounded(plan, key, value.const_value.numpy())
                    self.weights[value.name] = torch.from_numpy(array)
        written = [plan.nodes[n.name].outputs for n in self.nodes if n.name in plan.nodes]
        self.key = next((keys[0] for keys in reversed(written) if keys and keys[0]), None)

    def change(self, known: dict[str, Any]) -> Any:
        """Return what rounding changes the unit's tensor by, where all before it is float."""
        import torch

        def tensor(name: str, key: str | None) -> Any:
            array = known[name].detach()
            return (
                array if key is None else torch.from_numpy(rounded(self.plan, key, array.numpy()))
            )

        feeds = {name: tensor(name, key) for name, key in self.reads}
        result = self.graph.run(feeds, constants=self.weights)[self.output]
        if self.key is not None:
            result = torch.from_numpy(rounded(self.plan, self.key, result.numpy()))
        return result - known[self.output].detach()


def attribute(variants: NodeVariants, directions: int) -> dict[str, float]:
    """Return the error of each unit by gradients."""
    import torch

    from bitwright.learning.torch_graph.executor import TorchGraph

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: ir.Model = variants.units.float_model
    opset, cuts = opset_of(model), variants.units.cuts
    units = {n: Unit(variants.plan, cuts[p], opset) for n, p in variants.unit_of.items()}
    outputs = [value.name for value in model.graph.outputs]
    inputs = {value.name for value in model.graph.inputs}
    inner = {name for unit in units.values() for name, _ in unit.reads} - inputs
    wanted = {*outputs, *inner, *(unit.output for unit in units.values())}
    graph = TorchGraph(list(model.graph), wanted, opset=opset)
    errors = dict.fromkeys(units, 0.0)
    for sample in variants.samples:
        feeds = {name: torch.from_numpy(np.array(array)) for name, array in sample.items()}
        for tensor in feeds.values():
            tensor.requires_grad_(tensor.is_floating_point())
        known = feeds | graph.run(feeds)
        ends = [known[name] for name in outputs if known[name].is_floating_point()]
        targets = [known[unit.output] for unit in units.values()]
        found = []
        for _ in range(directions):
            probe = sum((torch.randn_like(y) * y).sum() / y.detach().norm() for y in ends)
            probe = probe / len(ends) ** 0.5
            found.append(torch.autograd.grad(probe, targets, retain_graph=True, allow_unused=True))
        with torch.no_grad():
            for index, (name, unit) in enumerate(units.items()):
                change = unit.change(known)
                squares = [
                    float((g[index] * change).sum()) ** 2 for g in found if g[index] is not None
                ]
                errors[name] += float(np.mean(squares or [0.0])) / len(variants.samples)
    return errors


def measure(name: str, directions: int) -> tuple[str, ...]:
    task = MODELS[name](32, 16)
    recipe = load_recipe(None, None)
    prepared = open_model(task.model, recipe, None)
    calibration = Calibration(task.calibration, holdout=False, progress=False)
    plan = plan_with_effort(prepared, recipe, "low", calibration, providers=None)
    written = open_quantized(prepared, Planned(plan))
    variants = open_unit_variants(prepared, written.plan, written.model, task.calibration[:8])
    start = time.process_time()
    alone = variants.run("alone")
    exact_seconds, start = time.process_time() - start, time.process_time()
    import torch  # noqa: F401  # what it takes to load is a part of the price

    import_seconds, start = time.process_time() - start, time.process_time()
    found = attribute(variants, directions)
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
    parser.add_argument("--directions", type=int, default=4)
    options = parser.parse_args()
    header = (
        "model", "units", "exact, CPU", "by gradients", "loading torch", "rank correlation",
        f"of the worst {TOP}", "error in these",
        f"units for {COVERED:.0%}, exactly",
    )  # fmt: skip
    print_table(header, [measure(name, options.directions) for name in options.models])


if __name__ == "__main__":
    main()
