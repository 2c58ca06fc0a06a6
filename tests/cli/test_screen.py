"""Tables and colours on a terminal, none elsewhere: told apart by a real pseudo-terminal."""

import os
import subprocess
import sys

import pytest

from bitwright.cli.screen import Facts, Screen, Table, show_bytes

pty = pytest.importorskip("pty", reason="needs a Unix terminal")


def on_terminal(*words, **environment):
    """Run the command with a terminal for stdout and stderr, and return what it wrote there."""
    reader, writer = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "bitwright", *map(str, words)],
        stdout=writer,
        stderr=writer,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", **environment},
    )
    os.close(writer)
    written = b""
    try:
        while chunk := os.read(reader, 65536):
            written += chunk
    except OSError:
        pass  # Linux says EIO when the other end is closed
    os.close(reader)
    assert process.wait() == 0, written.decode()
    return written.decode()


def test_a_terminal_gets_tables_in_colour(model):
    shown = on_terminal("inspect", model)
    assert "\x1b[1m" in shown
    assert "─" in shown
    assert "float[batch,1,8,8]" in shown


@pytest.mark.slow
def test_no_color_is_respected(model):
    shown = on_terminal("inspect", model, NO_COLOR="1")
    assert "\x1b[3" not in shown
    assert "─" in shown


@pytest.mark.slow
def test_json_stays_json_on_a_terminal(model):
    assert "\x1b" not in on_terminal("inspect", model, "--json")


@pytest.mark.slow
def test_a_bar_is_shown_and_wiped_on_a_terminal_only(model, data, out):
    words = ("quantize", model, "-o", out, "--data", data)
    assert "Observing" in on_terminal(*words)
    assert "Observing" not in on_terminal(*words, "--json")
    piped = subprocess.run(
        [sys.executable, "-m", "bitwright", *map(str, words)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert piped.stderr == ""
    assert "\x1b" not in piped.stdout


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_traceback(model):
    command = f"{sys.executable} -m bitwright inspect {model} --json | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_a_stream_that_knows_no_unicode_is_served():
    done = subprocess.run(
        [sys.executable, "-m", "bitwright", "recipes"],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert b"int8" in done.stdout


def test_plain_parts(capsys):
    table = Table("Title", ("op", "nodes"), [("Conv", "7"), ("GlobalAveragePool", "1")])
    Screen().show({}, ["first", table, Facts([("Size", "1")]), Table("Empty", ("a",), [])])
    assert capsys.readouterr().out == (
        "first\n"
        "Title\n"
        "  op                 nodes\n"
        "  Conv               7\n"
        "  GlobalAveragePool  1\n"
        "Size: 1\n"
    )


def test_infinities_become_null_in_json(capsys):
    Screen(as_json=True).show({"sqnr": float("inf")}, [])
    assert capsys.readouterr().out == '{\n  "sqnr": null\n}\n'


def test_sizes_are_short():
    assert [show_bytes(n) for n in (0, 999, 1000, 2_500_000, 3 * 10**9)] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "2.5 MB",
        "3.0 GB",
    ]
