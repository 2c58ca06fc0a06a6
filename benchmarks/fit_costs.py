"""Measure a cost table, and print how well it explains what was measured.

    python benchmarks/fit_costs.py [table.json] [--seconds 60]
    python benchmarks/fit_costs.py --wasm folder src/bitwright/targets/costs/wasm-simd.json

`bitwright bench --costs` writes the same table of this machine. With `--wasm` it is that of
onnxruntime-web in node, which `npm i --ignore-scripts onnxruntime-web` put into the folder. This
script needs no installed bitwright: with numpy, onnx, onnx_ir, onnxruntime, msgspec and ml_dtypes
it runs from a checkout.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

import msgspec  # noqa: E402
import onnx_ir as ir  # noqa: E402

from bitwright._version import __version__  # noqa: E402
from bitwright.assess.bench.profile import Event, NodeTime, Profile, read_events  # noqa: E402
from bitwright.jobs.cost_table import (  # noqa: E402
    Timing,
    fast_runs,
    fit_costs,
    make_table,
    measure_times,
    times_of,
)
from bitwright.jobs.micro_nets import MicroNet, chain_of, micro_nets  # noqa: E402
from bitwright.targets.costs import CostTable, write_costs  # noqa: E402
from bitwright.targets.host import processor_name  # noqa: E402

_ROUNDS = 5
_LEAST = 0.3
"""Microseconds below which a time is nothing but the profiler's own."""
_CHAINS = (1, 64)


def agreement(table: CostTable, timings: list[Timing]) -> dict[str, list[float]]:
    """Return kernel -> estimated / measured time of each of its nodes."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for work, us in timings:
        if work.kernel != "fused":
            ratios[work.kernel].append(table.time(work) / us)
    return dict(ratios)


def main() -> None:
    """Measure, fit, print, and write where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--wasm", type=Path, help="where onnxruntime-web is installed")
    options = parser.parse_args()
    nets = list(micro_nets())
    if options.wasm:
        table, timings = _measure_wasm(nets, options.wasm, options.seconds)
    else:
        timings = measure_times(nets, options.seconds)
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


def _measure_wasm(
    nets: list[MicroNet], folder: Path, seconds: float
) -> tuple[CostTable, list[Timing]]:
    """Return the table of onnxruntime-web, and the least time of each node in a few rounds."""
    every = [*map(chain_of, _CHAINS), *nets]
    whole = [math.inf] * len(every)
    profiled = [math.inf] * len(every)
    runs, version = [], ""
    for index, ran, profile in _run_in_node(every, folder, seconds):
        version = ran["version"]
        if profile is None:
            whole[index] = min(whole[index], 1e3 * fast_runs(ran["wall"]))
        else:
            profiled[index] = min(profiled[index], 1e3 * profile.milliseconds)
            runs.append((index, profile))
    # A node takes less in a whole run than the profiler says, whose own work takes about 6.
    short, long = (whole[index] - profiled[index] for index in range(len(_CHAINS)))
    overhead = (long - short) / (_CHAINS[1] - _CHAINS[0])
    print(f"taken from what the profiler says: {-overhead:.2f} microseconds a node")
    least: dict[tuple[int, str], float] = {}
    for index, profile in runs:
        for name, us in times_of(every[index], profile, overhead).items():
            least[index, name] = min(us, least.get((index, name), us))
    timings = [Timing(every[i].works[name], max(us, _LEAST)) for (i, name), us in least.items()]
    table = CostTable(
        cpu="wasm-simd",
        processor=processor_name(),
        versions={"onnxruntime-web": version, "bitwright": __version__},
        kernels=fit_costs(timings),
    )
    return table, timings


def _run_in_node(
    nets: list[MicroNet], folder: Path, seconds: float
) -> Iterator[tuple[int, dict[str, Any], Profile | None]]:
    """Run all nets a few times; yield a net's index, what the runner says, and the profile.

    The first ones, the chains, run without the profiler, too.
    """
    with tempfile.TemporaryDirectory() as scratch:
        asked, answer = Path(scratch, "nets.json"), Path(scratch, "profiles.txt")
        written = [_write_net(net, Path(scratch, str(index))) for index, net in enumerate(nets)]
        plain = [net | {"profile": False} for net in written[: len(_CHAINS)]]
        order = [*range(len(plain)), *range(len(written))]
        share = seconds / (_ROUNDS * len(order))
        listed = [*plain, *written] * _ROUNDS
        job = {"folder": str(folder.resolve()), "seconds": share, "nets": listed}
        asked.write_text(json.dumps(job), encoding="utf-8")
        with answer.open("wb") as output:  # a pipe could be full, which the runtime does not expect
            runner = Path(__file__).with_name("profile_wasm.mjs")
            subprocess.run(["node", runner, asked], stdout=output, check=True)
        events: list[str] = []
        indices = cycle(order)
        for line in answer.read_text(encoding="utf-8").splitlines():
            if line.startswith('{"wall"'):
                profile = _read_profile("".join(events)) if events else None
                yield next(indices), json.loads(line), profile
                events.clear()
            else:
                events.append(line)


def _write_net(net: MicroNet, stem: Path) -> dict[str, Any]:
    model = stem.with_suffix(".onnx")
    ir.save(net.model, model)
    inputs = {}
    for name, array in net.inputs.items():
        file = stem.with_suffix(f".{name}")
        array.tofile(file)
        inputs[name] = {"type": str(array.dtype), "dims": array.shape, "file": str(file)}
    return {"model": str(model), "inputs": inputs, "profile": True}


def _read_profile(events: str) -> Profile:
    """Read a profile under the model's names, to which layouts add a token."""
    times, ran, runs = read_events(msgspec.json.decode(events, type=list[Event]), fast_runs)
    nodes = []
    for name, milliseconds in times.items():
        is_layout = name.startswith("Transpose")  # the nets' own have lower case names
        kind = "layout" if is_layout else "float"
        nodes.append(NodeTime(name.partition("_token_")[0], ran[name].op, kind, milliseconds))
    return Profile(tuple(nodes), runs)


if __name__ == "__main__":
    main()
