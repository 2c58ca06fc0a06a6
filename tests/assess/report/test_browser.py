"""The page in a real browser."""

from dataclasses import replace

import pytest
from support.report_examples import EVIL, evil_subject, measured, subject, tuned, with_fix

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
        assert len(order) < 50, order
    stops = ["Skip to the table of nodes", "zoom-in", "plot", "search", "status", "grid"]
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
    browser.js("document.getElementById('frame').scrollTop = 30 * 1000")
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
