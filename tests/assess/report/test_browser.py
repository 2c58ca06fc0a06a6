"""The page in a real browser."""

from dataclasses import replace
from itertools import pairwise

import pytest
from support.report_examples import (
    EVIL,
    evil_subject,
    measured,
    network,
    subject,
    tuned,
    with_fix,
)

from bitwright.assess.report.subject import ReportNode

Keys = pytest.importorskip("selenium.webdriver", reason="selenium is not installed").Keys

ABSENT = "\N{EN DASH}"
NUMBER, NAME, OP, ALONE = 0, 1, 2, 4


def numbers(cells):
    return [float(cell) for cell in cells if cell != ABSENT]


def test_it_opens_without_a_complaint_on_the_most_sensitive_node(browser, small):
    browser.open(small)
    assert browser.complaints() == []
    browser.wait_for(small.nodes[small.worst[0]].measured.name)
    assert "Usable" in browser.text(".verdict")
    assert browser.text("#count") == "42 nodes"
    for selector in ("#plot path.line", "#plot path.dots", "#plot .ring", "#detail .bars.peak"):
        assert browser.all(selector), selector


def test_names_that_are_scripts_do_not_run(browser):
    browser.open(evil_subject())
    browser.one("#grid").send_keys(Keys.HOME)
    browser.js(
        "document.getElementById('plot')"
        ".dispatchEvent(new PointerEvent('pointermove', {clientX: 300}))"
    )
    assert browser.js("window.hacked === undefined && document.images.length === 0")
    browser.wait_for(EVIL)
    assert browser.complaints() == []


def test_the_policy_of_the_page_stops_what_would_be_injected(browser, small):
    browser.open(small)
    browser.js(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.hacked = 1';"
        " document.body.append(s); })()"
    )
    assert browser.js("window.hacked === undefined")
    assert any("Content Security Policy" in text for text in browser.complaints())


def test_headings_sort_both_ways_and_what_was_not_measured_comes_last(browser, small):
    browser.open(small)
    heading = browser.one("th[data-key=alone] button")
    heading.click()
    up = browser.column(ALONE)
    assert numbers(up) == sorted(numbers(up)) and float(up[0]) == 11.3
    assert browser.one("th[data-key=alone]").get_attribute("aria-sort") == "ascending"
    heading.click()
    down = browser.column(ALONE)
    assert numbers(down) == sorted(numbers(down), reverse=True) and down[0] != ABSENT
    assert browser.one("th[data-key=alone]").get_attribute("aria-sort") == "descending"
    assert browser.one("th[data-key=place]").get_attribute("aria-sort") is None


def test_names_sort_as_people_count(browser, small):
    browser.open(small)
    browser.one("th[data-key=name] button").click()
    names = browser.column(NAME)
    assert len(set(names)) > 5
    assert [int(name.rsplit("_", 1)[1]) for name in names if "block0/conv_" in name] == sorted(
        int(name.rsplit("_", 1)[1]) for name in names if "block0/conv_" in name
    )
    assert not browser.complaints()


def test_a_node_that_was_tried_out_leads_to_its_row(browser, small):
    browser.open(with_fix(small))
    assert browser.text(".proposal").startswith("Fall back to float for 1 node of")
    button = browser.all("button[data-choose]")[2]
    name = button.text
    button.click()
    assert browser.text("#detail h3.name") == name and browser.focused() == "grid"
    assert "Fallback regains" in browser.text("#detail .facts")
    assert browser.one("tr[aria-selected=true] td.name").text == name
    assert len(browser.all(".ranking tbody tr")) == 12
    assert browser.text(".ranking tbody tr:first-child td:last-child") == "fallback"


def test_a_node_that_was_not_compared_says_why(browser):
    why = "inside the body of If 'choose', where nothing is compared"
    inside = measured(
        name="inner", action="float", sqnr=None, cosine=None, max_error=None, local_sqnr=None,
        saturated=None, used=None, unmeasured=why,
    )  # fmt: skip
    browser.open(subject([measured(name="outer"), inside], worst=[0]))
    browser.one("tr[data-place='1']").click()
    assert f"Not compared: {why}." in browser.text("#detail")
    assert "null" not in browser.text("#detail")
    assert browser.text("button[data-find*='body of If']") == why
    browser.one("button[data-find*='body of If']").click()
    assert browser.column(NAME) == ["inner"]


def test_search_narrows_by_name_op_and_reason(browser, small):
    browser.open(small)
    box = browser.one("#search")
    box.send_keys("softmax")
    assert set(browser.column(OP)) == {"Softmax"}
    assert browser.text("#count") == "6 of 42"
    box.clear()
    box.send_keys("block0 conv")
    assert browser.column(OP) == ["Conv", "Conv"]
    box.clear()
    box.send_keys("named in op_types")
    assert set(browser.column(OP)) == {"Softmax"}
    box.send_keys("no such thing")
    assert browser.text("#grid tr.empty") == "No node matches."
    box.clear()
    box.send_keys(" ")
    browser.one("#status option[value=float]").click()
    assert browser.text("#count") == "6 of 42"


def test_a_reason_leads_to_its_nodes(browser, small):
    browser.open(small)
    browser.one("button[data-find]").click()
    assert set(browser.column(OP)) == {"Softmax"} and browser.focused() == "grid"


OUTLINED = """
(() => {
  const at = document.activeElement;
  return getComputedStyle(at.id === 'grid' ? at.closest('.frame') : at).outlineStyle !== 'none';
})()
"""


def test_tab_reaches_everything_and_shows_where_it_is(browser, small):
    browser.open(small)
    order = []
    while "The plan" not in order:
        browser.press(Keys.TAB)
        order.append(browser.js("document.activeElement.id || document.activeElement.textContent"))
        assert browser.js(OUTLINED), order[-1]
        assert len(order) < 70, order
    stops = ["Skip to the table of nodes", "zoom-in", "plot", "graph-search", "drawing", "search",
             "status", "grid"]  # fmt: skip
    assert [one for one in order if one in stops] == stops
    assert {"Copy", "Copy --exclude", "The whole recipe"} <= set(order)


def test_arrow_keys_move_through_the_chart(browser, small):
    browser.open(small)
    browser.js("document.getElementById('plot').focus()")
    browser.press(Keys.HOME)
    browser.wait_for(small.nodes[0].measured.name)
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    third = small.nodes[2].measured.name
    browser.wait_for(third)
    plot = browser.one("#plot")
    assert plot.get_attribute("aria-valuenow") == "3"
    assert third in plot.get_attribute("aria-valuetext")
    assert third in browser.js("document.getElementById('said').textContent")
    browser.press(Keys.END, Keys.ARROW_RIGHT)
    browser.wait_for(small.nodes[-1].measured.name)


def test_arrow_keys_move_through_the_table_as_it_is_sorted(browser, small):
    browser.open(small)
    browser.one("th[data-key=alone] button").click()
    browser.js("document.getElementById('grid').focus()")
    browser.press(Keys.HOME, Keys.ARROW_DOWN)
    second = small.nodes[small.worst[1]].measured.name
    browser.wait_for(second)
    active = browser.one("#grid").get_attribute("aria-activedescendant")
    assert active == f"row-{small.worst[1]}"
    assert browser.one(f"#{active}").get_attribute("aria-selected") == "true"


def test_a_click_in_the_chart_selects_and_a_drag_zooms(browser, small):
    from selenium.webdriver import ActionChains

    browser.open(small)
    plot = browser.one("#plot")
    browser.js("arguments[0].scrollIntoView({block: 'center'})", plot)
    width = plot.size["width"]

    def at(node):
        """How far right of the middle a node is; the margins are those of chart.js."""
        return round(46 + (width - 46 - 14) * node / 41 - width / 2)

    ActionChains(browser.driver, 0).move_to_element_with_offset(plot, at(10), 0).click().perform()
    browser.wait_for(small.nodes[10].measured.name)
    assert not browser.one(".tip").get_attribute("hidden")
    whole = browser.one("#plot path.line").get_attribute("d").count("L")
    (
        ActionChains(browser.driver, 0)
        .move_to_element_with_offset(plot, at(5), 0)
        .click_and_hold()
        .move_by_offset(at(20) - at(5), 0)
        .release()
        .perform()
    )
    zoomed = browser.one("#plot path.line").get_attribute("d").count("L")
    assert 14 <= zoomed <= 19 < whole
    browser.one("#zoom-all").click()
    assert browser.one("#plot path.line").get_attribute("d").count("L") == whole


def test_two_thousand_nodes_are_drawn_as_they_are_looked_at(browser, large):
    browser.open(large)
    assert browser.complaints() == []
    assert browser.one("#grid").get_attribute("aria-rowcount") == "2001"
    assert len(browser.column(NAME)) < 80
    browser.js("document.getElementById('grid').focus()")
    browser.press(Keys.END)
    browser.wait(lambda: browser.column(NUMBER)[-1] == "2,000")
    assert len(browser.column(NAME)) < 80
    tall = browser.js("document.querySelector('#grid tr[data-place]').offsetHeight")
    browser.js("document.getElementById('frame').scrollTop = 1000 * arguments[0]", tall)
    browser.wait(lambda: "1,001" in browser.column(NUMBER))


CONTRAST = """
(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = (color) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = rgb(getComputedStyle(at).backgroundColor);
      if (color[3] > 200) return color;
    }
    return [255, 255, 255, 255];
  };
  const bad = {};
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    const style = getComputedStyle(element);
    if (!own || !element.getClientRects().length || style.visibility === 'hidden') continue;
    if (element.closest('.unseen, script, option')) continue;
    const svg = element.namespaceURI.endsWith('svg');
    const [a, b] = [light(rgb(svg ? style.fill : style.color)), light(ground(element))].sort();
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad[`${element.tagName}.${element.getAttribute('class')}`] = ratio.toFixed(2);
  }
  return bad;
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(browser, small, scheme):
    browser.open(with_fix(small), scheme=scheme)
    page = browser.js("getComputedStyle(document.documentElement).backgroundColor")
    darkness = sum(int(part) for part in page[4:-1].split(","))
    assert (darkness < 150) == (scheme == "dark")
    assert browser.js(CONTRAST) == {}


@pytest.mark.parametrize("width", [360, 760, 1600])
def test_it_fits_every_width(browser, small, width):
    browser.open(with_fix(small), width=width)
    assert browser.js("document.documentElement.scrollWidth") <= width
    name = browser.one("#grid tbody tr[data-place] td.name")
    assert name.size["width"] > 100


def test_on_paper_it_is_light_and_lists_the_worst_nodes(browser, small):
    browser.open(small, scheme="dark")
    browser.prefer("dark", media="print")
    hidden = ".frame, .tools, .skip, .command button"
    assert not [one for one in browser.all(hidden) if one.is_displayed()]
    rows = browser.all(".worst tbody tr")
    assert len(rows) == 25 and rows[0].is_displayed()
    assert browser.js("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert browser.js(CONTRAST) == {}
    assert browser.pdf().startswith(b"%PDF")
    strips = browser.js("[...document.querySelectorAll('#strips svg')].map(s => s.viewBox.baseVal)")
    assert len(strips) > 2
    ends = [(one["y"], one["y"] + one["height"]) for one in strips]
    assert all(after[0] == before[1] for before, after in pairwise(ends))
    browser.prefer("light")


def test_without_script_the_verdict_and_the_worst_nodes_are_there(browser, small):
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(small)
        assert browser.one(".verdict").is_displayed()
        assert browser.one(".worst").is_displayed() and not browser.one("#plot").is_displayed()
        assert not [b for b in browser.all("button") if b.is_displayed()]
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)


def test_a_command_can_be_copied(browser, small):
    browser.open(small)
    browser.js("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    browser.one("button[data-copy=command-0]").click()
    copied = browser.wait(lambda: browser.js("window.copied"))
    assert copied.startswith("bitwright quantize resnet-like.onnx -o better.onnx --data imagenet")
    assert "\n" not in copied


def test_one_node_and_none_at_all_are_no_trouble(browser):
    unmeasured = measured(name="only", sqnr=None, local_sqnr=None)
    for given in (subject([unmeasured]), subject([], worst=[])):
        browser.open(given)
        assert browser.complaints() == []


def test_the_front_of_a_tuning_run_is_drawn_with_its_intervals(browser, small):
    browser.open(replace(small, tuning=tuned()))
    assert browser.complaints() == []
    assert browser.text("#tuning .proposal").startswith("Within the allowed drop of 0.01")
    assert len(browser.all("#front [data-index]")) == 2 and len(browser.all("#front .ring")) == 1
    assert len(browser.all("#front .spread")) == 3 and len(browser.all("#front .final")) == 1
    # The allowed drop lies between the point that keeps to it and the one that does not.
    places = browser.js(
        "['[data-index=\\'1\\'] .ring', '.allowed', '[data-index=\\'0\\'] .dots']"
        ".map(s => document.querySelector('#front ' + s).getBoundingClientRect())"
        ".map(box => box.top + box.height / 2)"
    )
    assert places == sorted(places, reverse=True)
    rows = browser.all(".front tbody tr")
    assert len(rows) == 3 and "chosen" in rows[1].text and "not evaluated" in rows[2].text
    assert "31 % of the error" in browser.text(".fallen")
    assert EVIL in browser.text(".fallen") and browser.js("window.hacked === undefined")
    assert browser.text("#command-tuning").startswith("bitwright apply model.onnx")
    assert browser.all("button[data-copy=command-tuning]")


def test_pointing_at_a_point_of_the_front_says_what_it_is(browser, small):
    browser.open(replace(small, tuning=tuned()))
    browser.js(
        "document.querySelector('#front [data-index=\\'0\\']')"
        ".dispatchEvent(new PointerEvent('pointerenter'))"
    )
    assert browser.text("#front .tip").startswith("2 ms")
    assert not browser.open(small).all("#front")


# The graph -------------------------------------------------------------------------------------


def units(browser):
    """Wait for the drawing, and return key -> class of what it shows."""
    browser.js("document.getElementById('graph').scrollIntoView()")
    browser.wait(lambda: browser.all("#drawing .unit"))
    return browser.js(
        "Object.fromEntries([...document.querySelectorAll('#drawing .unit')]"
        ".map(unit => [unit.dataset.key, unit.getAttribute('class')]))"
    )


def test_the_library_of_layouts_is_parsed_when_the_graph_is_looked_at(browser, small):
    browser.open(small)
    assert browser.js("globalThis.dagre === undefined")
    shown = units(browser)
    assert browser.js("typeof globalThis.dagre.layout") == "function"
    assert len(shown) == 40 and browser.complaints() == []


def test_nodes_are_coloured_by_their_error_and_those_left_float_are_not(browser, small):
    shown = units(browser.open(small))
    for key, style in shown.items():
        node = small.nodes[int(key)]
        level = "left-float"
        if node.quantized:
            level = f"level-{sum(node.alone >= step for step in (10, 20, 30, 40))}"
        assert level in style.split(), (key, style)
    assert "level-1" in shown[str(small.worst[0])].split()
    browser.one("#graph-colour option[value=sqnr]").click()
    assert units(browser) != shown


def test_what_reads_stands_below_what_it_reads(browser, small):
    shown = units(browser.open(small))
    tops = browser.js(
        "Object.fromEntries([...document.querySelectorAll('#drawing .unit rect')]"
        ".map(box => [box.parentNode.dataset.key, Number(box.getAttribute('y'))]))"
    )
    edges = browser.js(
        "[...document.querySelectorAll('#drawing .edge')].map(e => [e.dataset.from, e.dataset.to])"
    )
    read = {(str(r), str(p)) for p, n in enumerate(small.nodes) for r in n.measured.reads}
    assert {tuple(edge) for edge in edges} == {e for e in read if set(e) <= set(shown)}
    assert all(tops[source] < tops[reader] for source, reader in edges)


def test_no_label_is_cut(browser, small):
    units(browser.open(small))
    inside = browser.js(
        "[...document.querySelectorAll('#drawing .unit')].every(unit => {"
        " const box = unit.querySelector('rect').getBBox();"
        " return [...unit.querySelectorAll('text')].every(text => { const t = text.getBBox();"
        "  return t.x >= box.x && t.x + t.width <= box.x + box.width + 0.5"
        "   && t.y >= box.y - 1 && t.y + t.height <= box.y + box.height + 1; }); })"
    )
    assert inside
    for width in (1300, 390):
        browser.open(small, width=width)
        every = "[...document.querySelectorAll('#grid td')]"
        assert browser.js(f"{every}.every(c => c.scrollWidth <= c.clientWidth)")
        cells = "[...document.querySelectorAll('#grid td.name')]"
        assert browser.js(f"new Set({cells}.map(c => c.offsetHeight)).size === 1")
        names = [node.measured.name for node in small.nodes]
        assert set(browser.column(NAME)) <= set(names)


def test_long_names_break_where_their_parts_end_and_are_copied_whole(browser):
    name = "/features/features.5/block/se/se.4/GlobalAveragePool"
    given = subject([measured(name=name, op="GlobalAveragePool", max_error=0.000389)])
    browser.open(given, width=1300)
    assert browser.column(NAME) == [name] and browser.column(OP) == ["GlobalAveragePool"]
    lines = browser.js("document.querySelector('#grid td.name').innerHTML").split("<wbr>")
    assert len(lines) > 1 and all(line[-1] in "/." for line in lines[:-1])
    cell = "document.querySelector('#grid td.name')"
    assert browser.js(f"{cell}.scrollHeight <= {cell}.clientHeight")
    every = "[...document.querySelectorAll('#grid td')]"
    assert browser.js(f"{every}.every(c => c.scrollWidth <= c.clientWidth)")


def test_nodes_that_work_out_sizes_are_drawn_around_a_node_only_if_asked_for(browser):
    given = network(60)
    [chosen] = given.most_sensitive()[:1]
    other = chosen - 2
    nodes = [replace(n, sizes=place == other) for place, n in enumerate(given.nodes)]
    browser.open(replace(given, nodes=nodes))
    shown = units(browser)
    assert str(chosen) in shown and str(other) not in shown
    browser.one("#graph-part option[value=far]").click()
    browser.wait(lambda: str(other) in units(browser))


def test_a_click_in_the_graph_selects_a_node_and_its_neighbours(browser, small):
    units(browser.open(small))
    target = small.nodes[24].measured  # an Add, which reads two
    browser.one("#graph-fit").click()
    browser.one("#drawing .unit[data-key='24'] .unit-note").click()
    browser.wait_for(target.name)
    shown = units(browser)
    assert "picked" in shown["24"].split()
    near = {int(key) for key, style in shown.items() if "near" in style.split()}
    assert near == {20, 23, 25}
    assert [b.text for b in browser.all("#detail .neighbours button")] == [
        small.nodes[place].measured.name for place in (20, 23, 25)
    ]
    browser.one("#detail .neighbours button").click()
    browser.wait_for(small.nodes[20].measured.name)


def test_arrow_keys_go_along_the_edges_and_plus_zooms(browser, small):
    units(browser.open(small))
    browser.js("document.getElementById('drawing').focus()")
    first = small.nodes[small.worst[0]].measured
    browser.wait_for(first.name)
    browser.press(Keys.ARROW_UP)
    browser.wait_for(small.nodes[first.reads[0]].measured.name)
    browser.press(Keys.ARROW_DOWN)
    browser.wait_for(first.name)
    scale = "document.querySelector('#drawing > svg > g').getCTM().a"
    before = browser.js(scale)
    browser.press("+")
    assert browser.js(scale) == pytest.approx(1.4 * before, rel=1e-3)
    browser.press("0")
    assert browser.js(scale) < before


def test_enter_in_the_search_of_the_graph_goes_from_find_to_find(browser, small):
    units(browser.open(small))
    box = browser.one("#graph-search")
    box.send_keys("softmax")
    assert browser.text("#graph-matches") == "6 found"
    found = [n.measured.name for n in small.nodes if n.measured.op == "Softmax"]
    later = [n for n in found if int(n.rsplit("_", 1)[1]) > small.worst[0]] + found
    for name in later[:2]:
        box.send_keys(Keys.ENTER)
        browser.wait_for(name)
    assert [s for s in units(browser).values() if "found" in s.split()]


def test_five_thousand_nodes_are_drawn_in_parts_and_in_groups(browser):
    browser.open(network(5000))
    assert len(units(browser)) == 40 and browser.complaints() == []
    browser.one("#graph-part option[value=all]").click()
    groups = units(browser)
    assert 10 <= len(groups) <= 150 and all("group" in style for style in groups.values())
    browser.one("#drawing .unit.picked .unit-note").click()
    assert len(units(browser)) == 150
    assert browser.one("#graph-part").get_attribute("value") == "far"


def test_a_link_leads_to_its_node(browser, small):
    from urllib.parse import quote

    browser.open(small)
    name = small.nodes[7].measured.name
    path = browser.driver.current_url.split("#")[0]
    browser.driver.get("about:blank")
    browser.driver.get(f"{path}#node={quote(name, safe='')}")
    browser.wait_for(name)
    other = small.nodes[9].measured.name
    browser.js(f"location.hash = '#node=' + encodeURIComponent({other!r})")
    browser.wait_for(other)
    browser.js("document.getElementById('grid').focus()")
    browser.press(Keys.ARROW_DOWN)
    wanted = f"#node={quote(small.nodes[10].measured.name, safe='')}"
    browser.wait(lambda: browser.js("location.hash") == wanted)
    browser.driver.get("about:blank")
    browser.driver.get(f"{path}#node=nothing")
    browser.wait_for(small.nodes[small.worst[0]].measured.name)
    assert browser.complaints() == []


def test_the_names_of_the_file_stand_beside_ours(browser):
    node = ReportNode(measured=measured(name="stem"), in_file=[("stem", "Conv"), ("", "Relu")])
    browser.open(subject([node]))
    assert browser.text("#detail .in-file") == "In the file: Conv stem, Relu (no name)."
