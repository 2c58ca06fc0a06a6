"""The kind and class of this machine's CPU, and what the target cpu means on it."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import msgspec

from bitwright.targets import TARGETS, Target

CPU_CLASSES = ("x86-avx2", "x86-vnni", "x86-amx", "arm", "arm-dot", "arm-i8mm", "wasm-simd")
"""Classes of CPU that ONNX Runtime has kernels of their own for."""

CLASSES = {"avx2": "x86-avx2", "vnni": "x86-vnni", "arm": "arm-dot", "wasm": "wasm-simd"}
"""Kind of CPU that a target names -> the class that most of these machines are of."""

_CPUINFO = Path("/proc/cpuinfo")

_ARM = frozenset({"aarch64", "arm64", "armv7l", "armv8l"})
_WASM = frozenset({"wasm", "wasm32"})
_X86 = frozenset({"amd64", "i386", "i686", "x86", "x86_64"})
_ADDS_IN_32_BITS = frozenset({"avx512_vnni", "avx_vnni", "avx_vnni_int8"})


def on_host(target: Target, cpu: str | None = None) -> Target:
    """Return a target for the CPU of this machine, or one of another kind, with its rules."""
    if not target.host:
        return target
    kinds = (cpu or detect_cpu(),)
    same = (other for other in TARGETS.values() if not other.host and other.cpus == kinds)
    return msgspec.structs.replace(target, cpus=kinds, rules=next(same).rules)


def detect_cpu(machine: str | None = None, cpuinfo: Path = _CPUINFO) -> str:
    """Return the kind of this machine's CPU; "avx2", the most careful, where x86 does not tell."""
    machine = (machine or platform.machine()).lower()
    if machine in _ARM:
        return "arm"
    if machine not in _X86:
        return "vnni"  # no other CPU has the instruction that saturates
    return "vnni" if _ADDS_IN_32_BITS & read_flags(cpuinfo) else "avx2"


def detect_cpu_class(
    machine: str | None = None, cpuinfo: Path = _CPUINFO, system: str | None = None
) -> str:
    """Return the class of this machine's CPU, the plainest of its kind where flags are unknown.

    >>> detect_cpu_class("wasm32")
    'wasm-simd'
    """
    machine = (machine or platform.machine()).lower()
    system = system or platform.system()
    if machine in _WASM:
        return "wasm-simd"
    flags = read_flags(cpuinfo) if system == "Linux" else frozenset()
    if machine in _ARM:
        # All Macs have dot products, and so has what Windows 11 asks of Arm.
        has_dot = "asimddp" in flags or system in ("Darwin", "Windows")
        has_i8mm = "i8mm" in flags or (system == "Darwin" and _mac_multiplies_matrices())
        return "arm-i8mm" if has_i8mm else "arm-dot" if has_dot else "arm"
    if "amx_int8" in flags:
        return "x86-amx"
    return "x86-vnni" if _ADDS_IN_32_BITS & flags else "x86-avx2"


def _mac_multiplies_matrices() -> bool:
    """Return whether this Mac has the instructions i8mm: from the M2 on."""
    command = ["/usr/sbin/sysctl", "-n", "hw.optional.arm.FEAT_I8MM"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.stdout.strip() == "1"


def read_flags(cpuinfo: Path = _CPUINFO) -> frozenset[str]:
    """Return the features that Linux lists of the CPU; none where it does not tell."""
    lines = _read_lines(cpuinfo, ("flags", "Features"))
    return frozenset(lines[0].split() if lines else ())


def processor_name(cpuinfo: Path = _CPUINFO) -> str:
    """Return what the processor calls itself."""
    lines = _read_lines(cpuinfo, ("model name",))
    return lines[0] if lines else platform.processor() or platform.machine()


def _read_lines(cpuinfo: Path, starts: tuple[str, ...]) -> list[str]:
    """Return what stands behind the colon in lines that start so."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(starts)]
