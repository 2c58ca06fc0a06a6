"""A real browser for the page: Debian's chromium, driven by its own chromedriver."""

import base64
import shutil
import time

import pytest
from support.report_examples import network

from bitwright.assess.report.data import build_report_data
from bitwright.assess.report.page import render_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")


@pytest.fixture(scope="module")
def driver():
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed (apt install chromium-driver)")
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))
    yield driver
    driver.quit()


class Browser:
    """One page in the browser, and what tests do with it."""

    def __init__(self, driver, folder):
        self.driver = driver
        self.folder = folder

    def open(self, subject, *, width=1300, height=900, scheme="light", script=None):
        path = self.folder / "report.html"
        path.write_text(render_page(build_report_data(subject)), encoding="utf-8")
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self.prefer(scheme)
        self.driver.get(path.as_uri())
        return self

    def prefer(self, scheme, media=""):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", features=features, media=media)

    def command(self, name, **options):
        return self.driver.execute_cdp_cmd(name, options)

    def js(self, code, *arguments):
        return self.driver.execute_script(f"return {code.strip()}", *arguments)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector):
        return self.driver.find_element("css selector", selector)

    def text(self, selector):
        return self.one(selector).text

    def press(self, *keys):
        """Send keys to whatever has the focus, as a keyboard does."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def focused(self):
        return self.js("document.activeElement.id")

    def wait(self, check, seconds=20):
        end = time.monotonic() + seconds
        while not (found := check()):
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.02)
        return found

    def column(self, place):
        """The cells of a column as far as they are drawn."""
        return self.js(
            "[...document.querySelectorAll('#grid tbody tr[data-place]')]"
            ".map(row => row.cells[arguments[0]].textContent)",
            place,
        )

    def selected(self):
        return self.text("#detail h3.name")

    def wait_for(self, name):
        """Wait until a node is selected: keys and clicks are answered a frame later."""
        self.wait(lambda: self.selected() == name)

    def complaints(self):
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def pdf(self):
        return base64.b64decode(self.command("Page.printToPDF")["data"])


@pytest.fixture
def browser(driver, tmp_path):
    return Browser(driver, tmp_path)


@pytest.fixture(scope="module")
def small():
    return network(42)


@pytest.fixture(scope="module")
def large():
    return network(2000)
