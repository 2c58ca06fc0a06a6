"""Figures and templates: what a reader sees, and that nothing a model names becomes markup."""

import subprocess
import sys

import pytest
from support.report_examples import EVIL

from bitwright.assess.rendering import render_template, show_decibels, show_figure, show_percent


def test_text_is_escaped_and_markup_is_not():
    from markupsafe import Markup

    data = {"plan": None, "recipe": EVIL, "settings": {"markup": Markup("<b>x</b>")}}
    html = render_template("recipe.html", data=data)
    assert "<script" not in html and "<img" not in html and "<b>x</b>" in html


def test_a_value_that_a_template_lacks_is_an_error():
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError):
        render_template("recipe.html", data={"plan": None})


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (show_decibels(float("inf")), "exact"),
        (show_decibels(float("-inf")), "-inf"),
        (show_decibels(None), "\N{EN DASH}"),
        (show_figure("0.25", ".1f"), "0.2"),
        (show_percent(0.5), "50.0 %"),
    ],
)
def test_figures_are_short(shown, text):
    assert shown == text


def test_jinja2_is_loaded_only_when_something_is_rendered():
    code = "import sys, bitwright, bitwright.assess.rendering; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
