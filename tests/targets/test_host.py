import platform

import pytest

from bitwright.targets import CPU
from bitwright.targets.host import detect_cpu, on_host


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        ("fpu sse4_2 avx2", "avx2"),
        ("fpu avx2 avx512f avx512bw", "avx2"),
        ("fpu avx2 avx512_vnni", "vnni"),
        ("fpu avx2 avx_vnni", "vnni"),
    ],
)
def test_x86_is_told_apart_by_its_flags(tmp_path, flags, kind):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    assert detect_cpu("x86_64", cpuinfo) == kind


def test_other_machines_do_not_saturate(tmp_path):
    assert detect_cpu("aarch64", tmp_path / "none") == "arm"
    assert detect_cpu("ppc64le", tmp_path / "none") == "vnni"


def test_this_machine_is_one_of_them():
    assert detect_cpu() in CPU.cpus
    assert platform.machine()


def test_the_target_cpu_has_the_rules_of_its_kind():
    assert "signed_readers" in on_host(CPU, "vnni").rules
    assert "signed_readers" not in on_host(CPU, "arm").rules
    assert on_host(CPU).cpus == (detect_cpu(),)
