"""The file as text: complete, escaped, self-contained, small. What it does is in test_browser."""

import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from support.report_examples import (
    EVIL,
    activation,
    evil_subject,
    measured,
    network,
    subject,
    weight,
    with_fix,
)

from bitwright.assess.clock import read_clock
from bitwright.assess.coverage import Coverage
from bitwright.assess.report.data import build_report_data
from bitwright.assess.report.page import list_figures, render_page
from bitwright.assess.report.subject import ReportNode
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe


class Elements(HTMLParser):
    """Collects the elements of a page with their attributes, and the text of scripts."""

    def __init__(self, page):
        super().__init__()
        self.found, self.scripts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, text):
        if self.found and self.found[-1][0] == "script":
            self.scripts[-1] += text


def page_of(given):
    return render_page(build_report_data(given))


def data_in(page):
    return json.loads(Elements(page).scripts[0])


def test_names_from_the_model_never_become_markup():
    page = page_of(evil_subject())
    elements = Elements(page)
    assert len(elements.scripts) == 3  # data, the library of layouts as text, the page's own
    assert not [tag for tag, _ in elements.found if tag == "img"]
    assert not [a for _, a in elements.found for name in a if name.startswith("on")]
    assert data_in(page)["nodes"][0]["name"] == EVIL


def test_a_name_that_looks_like_a_placeholder_stays_a_name():
    page = page_of(subject(float_name="{{ script }}", quantized_name="{{ json }}"))
    assert "{{ json }} <span" in page and page.count('id="report-data"') == 1


def test_nothing_is_loaded_from_anywhere():
    page = page_of(network(20))
    for tag, attributes in Elements(page).found:
        assert tag not in ("link", "iframe", "object", "embed", "img", "base")
        assert not {"src", "srcset", "style"} & set(attributes), (tag, attributes)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL).group(1)
    assert "url(" not in style and "@import" not in style
    assert "https://" not in page
    assert set(re.findall(r"http://[^\"]+", page)) == {"http://www.w3.org/2000/svg"}


def test_infinities_and_missing_figures_survive_json():
    nodes = [
        measured(sqnr=math.inf, local_sqnr=None, max_error=math.nan),
        measured(name="b", sqnr=-math.inf),
    ]
    found = data_in(page_of(subject(nodes)))["nodes"]
    assert (found[0]["sqnr"], found[0]["alone"], found[0]["error"]) == ("Infinity", None, None)
    assert found[1]["sqnr"] == "-Infinity"


def test_a_name_that_is_no_text_can_be_written():
    page = page_of(subject([measured(name="bad\udcff")]))
    page.encode("utf-8")
    assert data_in(page)["nodes"][0]["name"] == "bad\udcff"


def test_the_same_report_is_the_same_bytes():
    assert page_of(network(30)) == page_of(network(30))


@pytest.mark.parametrize("given", [subject([], worst=[]), subject(outputs=[], recipe=None)])
def test_a_report_of_little_is_a_report(given):
    assert "<h1>" in page_of(given)


def test_coverage_counts_and_explains():
    nodes = [
        measured(name="a"),
        measured(name="b", op="Softmax", action="float", reason="not asked for"),
        measured(name="c", op="Softmax", action="float", reason="not asked for"),
    ]
    coverage = build_report_data(subject(nodes))["coverage"]
    assert (coverage["nodes"], coverage["quantized"]) == (3, 1)
    assert coverage["ops"][0] == {"op": "Softmax", "nodes": 2, "quantized": 0}
    assert coverage["reasons"] == [{"reason": "not asked for", "op": "Softmax", "nodes": 2}]


def test_settings_name_what_is_unusual_and_what_matters_most():
    from bitwright.recipe import Percentile, Selection

    recipe = Recipe(
        name="mine", ranges=Percentile(percentile=99.9), select=Selection(exclude=("head",))
    )
    settings = build_report_data(subject(recipe=recipe))["settings"]
    assert settings["ranges"] == "percentile: percentile 99.9"
    assert settings["select"] == "exclude head"
    assert settings["per_channel"] == "no"
    assert "reduce_range" not in settings


def test_a_small_plan_is_carried_along_and_a_huge_one_is_not():
    plan = QuantPlan(fingerprint="", recipe=Recipe(), tensors={}, nodes={}, notes=["n"])
    found = build_report_data(subject(plan=plan))["plan"]
    assert QuantPlan.from_json(found["json"]) == plan
    huge = QuantPlan(fingerprint="", recipe=Recipe(), tensors={}, nodes={}, notes=["x" * 1_100_000])
    assert build_report_data(subject(plan=huge))["plan"]["json"] is None


@pytest.mark.slow
def test_two_thousand_nodes_are_less_than_five_megabytes():
    given = network(2000)
    assert len(given.tensors) > 2500
    assert len(page_of(given).encode()) < 5e6


def test_a_tensor_says_what_its_range_cuts_off():
    view = activation("x", np.array([0.0, 1.0, 2.0, 3.0]), top=2.5).to_dict()
    assert view["clipped"] == 0.25
    assert view["range"] == [0.0, 2.5]


def test_channels_are_kept_as_their_largest_values():
    array = np.ones((300, 4))
    array[123] = 50
    channels = weight("w", array).to_dict()["channels"]
    assert (channels["count"], channels["largest"]) == (300, 123)
    assert len(channels["peaks"]) == 2 * 128
    assert channels["peak"] * channels["unit"] == pytest.approx(50)


def test_the_policy_allows_the_two_scripts_of_the_page_and_no_other():
    from base64 import b64encode
    from hashlib import sha256

    page = page_of(subject())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1)
    allowed = set(re.search(r"script-src ([^;]*);", policy).group(1).split())
    # As written, not as parsed: a browser hashes the text between the tags.
    library, script = (
        re.search(rf"<script{attributes}>(.*?)</script>", page, re.DOTALL).group(1)
        for attributes in (' type="text/plain" id="layout-library"', "")
    )
    assert allowed == {
        f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
        for text in (library, script)
    }
    assert "Permission is hereby granted" in library and "Chris Pettitt" in library


def test_names_of_the_file_are_given_where_they_are_not_ours():
    same = ReportNode(measured=measured(name="a"), in_file=[("a", "Conv")])
    folded = ReportNode(
        measured=measured(name="b", index=1, reads=(0,)),
        in_file=[("b", "Conv"), ("", "BatchNormalization")],
    )
    first, second = build_report_data(subject([same, folded]))["nodes"]
    assert first["file"] == [] and first["reads"] == []
    assert second["file"] == [["b", "Conv"], ["", "BatchNormalization"]] and second["reads"] == [0]


def test_the_contents_lead_to_every_section():
    elements = Elements(page_of(with_fix(network(20)))).found
    links = [
        a["href"][1:] for tag, a in elements if tag == "a" and a.get("href", "").startswith("#")
    ]
    sections = [a["id"] for tag, a in elements if tag == "section"]
    assert links[1:] == sections  # the first skips to the table


def test_the_time_is_shown_with_its_interval_and_kernels_with_their_share():
    given = subject(clock=read_clock([(0.012, 0.00601)] * 5), coverage=Coverage(4, 3, 100, 90))
    figures = {one.name: one[1:] for one in list_figures(build_report_data(given))}
    note = "(0.48 to 0.52), one thread: 12 → 6.01 ms"
    assert figures["Time"] == ("0.50", "of prepared float's", note)
    assert figures["Integer kernels"] == ("3", "of 4 products", "90 % of multiply-adds")
