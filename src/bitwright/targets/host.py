"""The kind of CPU that this machine has, and what the target cpu means on it."""

from __future__ import annotations

import platform
from pathlib import Path

import msgspec

from bitwright.targets import TARGETS, Target

__all__ = ["detect_cpu", "on_host"]

_ARM = frozenset({"aarch64", "arm64", "armv7l", "armv8l"})
_X86 = frozenset({"amd64", "i386", "i686", "x86", "x86_64"})
_ADDS_IN_32_BITS = frozenset({"avx512_vnni", "avx_vnni", "avx_vnni_int8"})


def on_host(target: Target, cpu: str | None = None) -> Target:
    """Return a target for the CPU of this machine, or one of another kind, with its rules."""
    if not target.host:
        return target
    kinds = (cpu or detect_cpu(),)
    same = (other for other in TARGETS.values() if not other.host and other.cpus == kinds)
    return msgspec.structs.replace(target, cpus=kinds, rules=next(same).rules)


def detect_cpu(machine: str | None = None, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the kind of this machine's CPU; "avx2", the most careful, where x86 does not tell."""
    machine = (machine or platform.machine()).lower()
    if machine in _ARM:
        return "arm"
    if machine not in _X86:
        return "vnni"  # no other CPU has the instruction that saturates
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "avx2"
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return "vnni" if _ADDS_IN_32_BITS.intersection(flags) else "avx2"
