"""Hold each page of build/site against axe-core, and see that none is wider than its window.

npm install --no-save --prefix build axe-core
make docs && python scripts/check_site.py build/node_modules/axe-core/axe.min.js

Findings of the impacts serious and critical are printed, and make the exit code 1. It needs
chromium and chromium-driver.
"""

from __future__ import annotations

import sys
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SITE = Path(__file__).parents[1] / "build" / "site"
SIZES = ((1280, 800), (400, 800))
RUN = """const done = arguments[0];
axe.run(document, {resultTypes: ["violations"]}).then(found => done(found.violations));"""
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing of each request."""


def open_browser() -> Any:
    """Return a chromium without a window."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options)


def check_page(browser: Any, axe: str) -> list[str]:
    """Return what is wrong with the page that a browser shows."""
    found = []
    for size in SIZES:
        browser.set_window_size(*size)
        time.sleep(0.3)  # until it is laid out
        if (over := browser.execute_script(OVERFLOW)) > 1:
            found.append(f"{over} pixels wider than a window of {size[0]}")
    browser.execute_script(axe)
    for one in browser.execute_async_script(RUN):
        if one["impact"] in ("serious", "critical"):
            where = "; ".join(node["html"][:100] for node in one["nodes"][:3])
            found.append(f"{one['impact']}: {one['id']} ({len(one['nodes'])}): {where}")
    return found


def check_site(axe_file: str, site: Path = SITE) -> dict[str, list[str]]:
    """Return what is wrong with each page of a site."""
    axe = Path(axe_file).read_text(encoding="utf-8")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = open_browser()
    try:
        found = {}
        for page in sorted(site.rglob("index.html")):
            name = page.parent.relative_to(site).as_posix()
            browser.get(f"http://127.0.0.1:{server.server_port}/{name}/")
            found[name] = check_page(browser, axe)
        return found
    finally:
        browser.quit()
        server.shutdown()


def main(axe_file: str) -> int:
    """Print what is wrong, and return the exit code."""
    found = check_site(axe_file)
    for name, problems in found.items():
        for problem in problems:
            print(f"{name}: {problem}")
    wrong = sum(map(bool, found.values()))
    print(f"{len(found)} pages, {wrong} with serious findings")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
