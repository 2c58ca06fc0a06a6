import sys

import pytest

from bitwright.errors import MissingPackageError
from bitwright.support.showing import Summarized, data_frame, html_tables
from support.report_examples import EVIL


def test_cells_are_escaped_and_numbers_stand_right():
    html = html_tables([("T", ("name", "dB"), [(EVIL, "31.2"), ("b", "exact")])])
    assert "<script" not in html and "<img" not in html
    assert 'text-align:right">31.2' in html and 'text-align:left">b' in html


def test_no_color_is_set_so_that_every_theme_can_set_its_own():
    html = html_tables([("T", ("name",), [("a",)])])
    assert "color:#" not in html and "background:#" not in html and "<style" not in html


def test_tables_without_rows_are_left_out():
    assert html_tables([("T", ("name",), [])]) == "<div></div>"


def test_what_is_summarized_is_one_line_in_a_console_and_its_summary_in_print():
    class Found(Summarized):
        def summary(self):
            return "first\nsecond"

    assert (repr([Found()]), str(Found())) == ("[<Found: first>]", "first\nsecond")


def test_a_table_needs_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match="install it"):
        data_frame([])
