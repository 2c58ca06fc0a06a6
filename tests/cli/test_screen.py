"""Tables and colours on a terminal, none elsewhere: told apart by a real pseudo-terminal."""

import json
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


EVIL = "a\x1b[31m\nerror: forged\x9b\u202e"
SHOWN = r"a\x1b[31m\nerror: forged\x9b\u202e"


@pytest.mark.parametrize("part", [Facts([("Name", EVIL)]), Table(EVIL, ("node",), [(EVIL,)])])
def test_names_stay_in_their_line_and_send_nothing_to_a_terminal(capsys, part):
    Screen().show({}, [part])
    shown = capsys.readouterr().out
    assert SHOWN in shown
    assert shown.isascii()
    assert not [line for line in shown.splitlines() if line.startswith("error")]


def test_texts_keep_their_lines_and_nothing_else(capsys):
    Screen().show({}, ["one\n  two \x1b[2J"])
    assert capsys.readouterr().out == "one\n  two \\x1b[2J\n"


def test_json_holds_no_character_that_a_terminal_acts_on(capsys):
    Screen(as_json=True).show({"name": EVIL, EVIL: 1}, [])
    shown = capsys.readouterr().out
    assert shown.isascii()
    assert json.loads(shown) == {"name": EVIL, EVIL: 1}


def test_a_path_that_is_no_utf8_is_escaped_in_json(capsys):
    Screen(as_json=True).show({"paths": ["\udcff.onnx"], "sqnr": float("inf")}, [])
    assert json.loads(capsys.readouterr().out) == {"paths": [r"\udcff.onnx"], "sqnr": None}


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
