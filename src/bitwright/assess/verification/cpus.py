"""Kinds of CPU by how they multiply bytes, and the kind of this machine."""

from __future__ import annotations

import platform
from pathlib import Path

from bitwright.targets import CPU

__all__ = ["CPUS", "detect_cpu"]

CPUS = CPU.cpus

_ARM = frozenset({"aarch64", "arm64", "armv7l", "armv8l"})
_X86 = frozenset({"amd64", "i386", "i686", "x86", "x86_64"})
_ADDS_IN_32_BITS = frozenset({"avx512_vnni", "avx_vnni", "avx_vnni_int8"})


def detect_cpu(machine: str | None = None, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the kind of this machine's CPU; "avx2", the most careful, where x86 does not tell.

    >>> detect_cpu("arm64"), detect_cpu("AMD64", Path("no-such-file"))
    ('arm', 'avx2')
    """
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
