"""What a user reads when Ray has ended the process."""

import socket
import subprocess
import sys

import pytest

from bitwright.support import witness

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Ray has no such sockets")

PROGRAM = """
import os, sys
from bitwright.support.witness import watch_node
with watch_node(sys.argv[1]):
    if sys.argv[2] == "dies":
        os._exit(1)
    if sys.argv[2] == "fails":
        sys.exit(1)
"""


def said(path, end):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), end], capture_output=True, text=True, timeout=60
    )
    return done.stderr


def test_a_process_that_ends_with_its_node_is_explained_in_a_sentence(tmp_path):
    assert said(tmp_path / "gone", "dies") == f"{witness._GONE}\n"


@pytest.mark.parametrize("end", ["fails", "ends"])
def test_a_process_that_ends_by_itself_needs_no_words(tmp_path, end):
    assert said(tmp_path / "gone", end) == ""


def test_a_process_that_somebody_killed_is_no_matter_of_the_node(tmp_path):
    with socket.socket(socket.AF_UNIX) as node:
        node.bind(str(tmp_path / "node"))
        node.listen()
        assert said(tmp_path / "node", "dies") == ""
