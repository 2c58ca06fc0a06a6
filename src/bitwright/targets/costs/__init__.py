"""Cost tables: what each kernel of ONNX Runtime costs on a class of CPU, as measured data.

A kernel's time is a line: call + macs * multiply-adds + read * elements read + written * elements
written, and steeper from where these do not fit into a cache. `bitwright bench --costs` measures a
table; placement reads one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from bitwright.errors import RecipeError, TargetError, did_you_mean
from bitwright.support import convert, read_parsed, write_file
from bitwright.targets.host import CPU_CLASSES, detect_cpu_class

__all__ = ["CPU_CLASSES", "Cost", "CostTable", "Work", "read_costs", "write_costs"]

_DATA = Path(__file__).parent

CACHED = 400_000
"""So many floats a core's own cache of 2 MB holds, beside weights and code."""

# Whose table stands in for a class that nobody measured: the nearest instructions first.
_NEAREST = {
    "x86-avx2": ("x86-vnni", "x86-amx"),
    "x86-vnni": ("x86-amx", "x86-avx2"),
    "x86-amx": ("x86-vnni", "x86-avx2"),
    "arm": ("arm-dot", "arm-i8mm", "x86-avx2", "x86-vnni"),
    "arm-dot": ("arm-i8mm", "arm", "x86-vnni"),
    "arm-i8mm": ("arm-dot", "arm", "x86-vnni"),
    "wasm-simd": ("x86-avx2", "x86-vnni"),
}


class Work(NamedTuple):
    """What one node asks of the machine: a kernel, and how much it has to do.

    >>> Work("quantize", read=1000, written=1000).macs
    0
    """

    kernel: str
    macs: float = 0
    """Multiply-adds that the kernel runs, those of padded channels included."""
    read: float = 0
    """Elements read of activations."""
    written: float = 0
    """Elements written."""
    calls: int = 1
    """0: another kernel does this as well, with what it has just written."""
    weights: float = 0
    """Weights of a float convolution of more than a pixel; they count as read, too."""

    @property
    def uncached(self) -> float:
        """Elements beyond those that a core's own cache holds: of numbers, or four times as many
        bytes.

        >>> Work("add", read=300_000, written=150_000).uncached
        50000
        """
        held = CACHED * (4 if self.kernel.startswith(("q", "byte")) else 1)
        return max(self.read + self.written - held, 0) * self.calls


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a kernel costs, on one thread.

    >>> Cost(call=2, read=0.25).of(Work("quantize", read=4000))
    3.0
    """

    call: float = 0.0
    """Microseconds per call."""
    macs: float = 0.0
    """Microseconds per million multiply-adds."""
    read: float = 0.0
    """Microseconds per thousand elements read."""
    written: float = 0.0
    """Microseconds per thousand elements written."""
    uncached: float = 0.0
    """Microseconds more for a thousand of the elements that a core's own cache does not hold."""
    weights: float = 0.0
    """Microseconds more per thousand weights: wasm starts anew for each channel of a depthwise
    convolution."""

    def __post_init__(self) -> None:
        if not all(0 <= price < float("inf") for price in msgspec.structs.astuple(self)):
            raise TargetError(f"costs are finite numbers of at least 0, not {self}.")

    def of(self, work: Work) -> float:
        """Return the microseconds that some work takes."""
        elements = self.read * work.read + self.written * work.written
        elements += self.uncached * work.uncached + self.weights * work.weights
        return self.call * work.calls + self.macs * work.macs / 1e6 + elements / 1e3


class CostTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the kernels cost on a class of CPU.

    >>> table = CostTable(cpu="x86-vnni", kernels={"quantize": Cost(call=2, read=0.25)})
    >>> table.time(Work("quantize", read=4000))
    3.0
    """

    cpu: str
    """The class of CPU, one of CPU_CLASSES."""
    processor: str = ""
    """The name of the processor that it was measured on."""
    flags: tuple[str, ...] = ()
    """What of that processor decides about kernels, such as avx512_vnni."""
    versions: dict[str, str] = {}
    """Package -> the version that it was measured with."""
    kernels: dict[str, Cost]
    borrowed_from: str | None = None
    """The class whose table this is, where nobody measured the class asked for."""

    def time(self, work: Work) -> float:
        """Return the microseconds that some work takes."""
        cost = self.kernels.get(work.kernel)
        if cost is None:
            hint = did_you_mean(work.kernel, self.kernels)
            raise TargetError(f"the costs of {self.cpu} have no kernel {work.kernel!r}.{hint}")
        return cost.of(work)


def read_costs(cpu_or_path: str | Path | None = None) -> CostTable:
    """Return the costs of a class of CPU, or of a .json file; None: of this machine's class.

    >>> read_costs("x86-vnni").borrowed_from is None
    True
    >>> read_costs("x86-vni")
    Traceback (most recent call last):
    bitwright.errors.TargetError: unknown class of CPU 'x86-vni'. Did you mean 'x86-vnni'?
    """
    if cpu_or_path is None:
        cpu_or_path = detect_cpu_class()
    if str(cpu_or_path).endswith(".json"):
        return _read(Path(cpu_or_path))
    cpu = str(cpu_or_path)
    if cpu not in CPU_CLASSES:
        raise TargetError(f"unknown class of CPU {cpu!r}.{did_you_mean(cpu, CPU_CLASSES)}")
    for measured in (cpu, *_NEAREST[cpu]):
        path = _DATA / f"{measured}.json"
        if path.exists():
            table = _read(path)
            borrowed = None if measured == cpu else measured
            return msgspec.structs.replace(table, cpu=cpu, borrowed_from=borrowed)
    raise TargetError(f"there are no costs for {cpu}, nor for a class like it.")


def write_costs(table: CostTable, path: Path) -> None:
    """Write a table that `read_costs` reads, a kernel a line."""
    head = msgspec.to_builtins(msgspec.structs.replace(table, kernels={}))
    start = json.dumps({name: value for name, value in head.items() if value}, indent=2)
    rows = []
    for name, cost in sorted(table.kernels.items()):
        prices = {key: price for key, price in msgspec.to_builtins(cost).items() if price}
        rows.append(f"    {json.dumps(name)}: {json.dumps(prices)}")
    text = start.removesuffix("\n}") + ',\n  "kernels": {\n' + ",\n".join(rows) + "\n  }\n}\n"
    write_file(path, text)


def _read(path: Path) -> CostTable:
    data = read_parsed(path, "costs", TargetError, msgspec.json.decode, "are not JSON")
    if not isinstance(data, Mapping):
        raise TargetError(f"the costs {str(path)!r} are not a table with cpu and kernels.")
    try:
        table = convert(dict(data), CostTable, str(path))
    except (RecipeError, TargetError) as error:
        raise TargetError(f"the costs {str(path)!r}: {error}") from error
    if table.cpu not in CPU_CLASSES:
        hint = did_you_mean(table.cpu, CPU_CLASSES)
        raise TargetError(f"the costs {str(path)!r} are of an unknown class {table.cpu!r}.{hint}")
    return table
