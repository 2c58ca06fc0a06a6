"""A difference is said in the words of its row, in a guide and in a warning."""

import pytest

from bitwright.compat.differences import Difference, as_table

ROW = Difference("quantize", "in silence", "is ignored", "nothing reads it", warns=True)


def test_a_warning_says_what_the_row_says():
    with pytest.warns(UserWarning, match=r"^option 'x' is ignored: nothing reads it\.$"):
        ROW.warn("option 'x'")


def test_a_nearer_reason_stands_for_the_rows():
    assert ROW.sentence("option 'x'", "it is empty") == "option 'x' is ignored: it is empty."


def test_a_table_says_which_differences_are_warned_of():
    assert as_table([ROW]).endswith(
        "| `quantize` | in silence | is ignored, with a warning | nothing reads it |"
    )
