import platform
import subprocess

import pytest

from bitwright.targets import CPU
from bitwright.targets.host import (
    CPU_CLASSES,
    detect_cpu,
    detect_cpu_class,
    on_host,
    processor_name,
)


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


@pytest.mark.parametrize(
    ("machine", "text", "cpu"),
    [
        ("x86_64", "flags\t\t: fpu avx2 avx512_vnni amx_tile amx_int8", "x86-amx"),
        ("x86_64", "flags\t\t: fpu avx2 avx512_vnni", "x86-vnni"),
        ("AMD64", "flags\t\t: fpu avx2 avx_vnni", "x86-vnni"),
        ("x86_64", "flags\t\t: fpu avx2 avx512f", "x86-avx2"),
        ("x86_64", "", "x86-avx2"),
        ("aarch64", "Features\t: fp asimd asimddp i8mm", "arm-i8mm"),
        ("aarch64", "Features\t: fp asimd asimddp", "arm-dot"),
        ("armv7l", "Features\t: half thumb neon", "arm"),
    ],
)
def test_the_class_of_a_cpu_is_told_by_its_flags(tmp_path, machine, text, cpu):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{text}\n\nprocessor\t: 1\n")
    assert detect_cpu_class(machine, cpuinfo, "Linux") == cpu


def test_where_flags_are_not_told_the_class_is_what_all_such_machines_have(tmp_path):
    none = tmp_path / "none"
    assert detect_cpu_class("arm64", none, "Windows") == "arm-dot"
    assert detect_cpu_class("AMD64", none, "Windows") == "x86-avx2"
    assert detect_cpu_class("wasm32", none, "Emscripten") == "wasm-simd"
    assert detect_cpu_class() in CPU_CLASSES


@pytest.mark.parametrize(
    ("answer", "cpu"), [("1\n", "arm-i8mm"), ("0\n", "arm-dot"), ("", "arm-dot")]
)
def test_a_mac_is_asked_for_its_instructions(tmp_path, monkeypatch, answer, cpu):
    done = subprocess.CompletedProcess([], 0, stdout=answer)
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: done)
    assert detect_cpu_class("arm64", tmp_path / "none", "Darwin") == cpu


def test_a_mac_that_does_not_answer_has_dot_products(tmp_path, monkeypatch):
    def fail(*words, **options):
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", fail)
    assert detect_cpu_class("arm64", tmp_path / "none", "Darwin") == "arm-dot"


def test_the_processor_has_a_name(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n")
    assert processor_name(cpuinfo) == "Some CPU @ 2 GHz"
    assert processor_name(tmp_path / "none")
