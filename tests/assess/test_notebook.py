from support.report_examples import EVIL

from bitwright.assess.notebook import html_tables


def test_cells_are_escaped_and_numbers_stand_right():
    html = html_tables([("T", ("name", "dB"), [(EVIL, "31.2"), ("b", "exact")])])
    assert "<script" not in html and "<img" not in html
    assert 'text-align:right">31.2' in html and 'text-align:left">b' in html


def test_no_color_is_set_so_that_every_theme_can_set_its_own():
    html = html_tables([("T", ("name",), [("a",)])])
    assert "color:#" not in html and "background:#" not in html and "<style" not in html


def test_tables_without_rows_are_left_out():
    assert html_tables([("T", ("name",), [])]) == "<div></div>"
