"""How large the report of a deep network is, and how soon it can be used.

    python benchmarks/report.py

Needs chromium and its driver (on Debian: apt install chromium chromium-driver).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from selenium import webdriver
from support.report_examples import network

from bitwright.assess.report.data import build_report_data
from bitwright.assess.report.page import render_page

# From the start of loading to the first frame that is drawn after everything is in place.
DRAWN = """
const done = arguments[0];
requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0));
"""

READY = "return document.documentElement.dataset.ready"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 2000, 10_000])
    parser.add_argument("--loads", type=int, default=7)
    asked = parser.parse_args()
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.binary_location = shutil.which("chromium") or ""
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    print(f"{'nodes':>7} {'tensors':>8} {'build s':>8} {'MB':>6} {'script ms':>10} {'drawn ms':>9}")
    with tempfile.TemporaryDirectory() as folder, webdriver.Chrome(options, service) as driver:
        for count in asked.nodes:
            subject = network(count)
            start = time.perf_counter()
            page = render_page(build_report_data(subject)).encode()
            built = time.perf_counter() - start
            path = Path(folder) / f"{count}.html"
            path.write_bytes(page)
            ready, drawn = [], []
            for _ in range(asked.loads):
                driver.get(path.as_uri())
                ready.append(float(driver.execute_script(READY)))
                drawn.append(driver.execute_async_script(DRAWN))
            print(
                f"{count:>7} {len(subject.tensors):>8} {built:>8.2f} {len(page) / 1e6:>6.2f} "
                f"{statistics.median(ready):>10.0f} {statistics.median(drawn):>9.0f}"
            )


if __name__ == "__main__":
    main()
