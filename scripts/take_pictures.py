"""Take the pictures of the documentation: a run in a terminal, the report, and both side by side.

python scripts/take_pictures.py [FOLDER]

The folder keeps the models and the report for the next time. It needs chromium and chromium-driver.
"""

from __future__ import annotations

import base64
import contextlib
import io
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]

PICTURES = ROOT / "docs" / "images"
TRANSFORM = ["--transform", "mean=0.5,std=0.5"]
QUANTIZE = ["quantize", "recognizer.onnx", "lines", *TRANSFORM]
REPORT = ["report", "recognizer.onnx", "recognizer-int8.onnx", "--data", "lines", *TRANSFORM]
SHOWN = ("Recipe", "Nodes", "Size", "Calibrated on", "Integer kernels", "Time", "Written to")
LAST = ("Verdict", "Next")


def make_run(folder: Path) -> str:
    """Quantize, write the report, and return what the first command printed."""
    from support.real_folder import make_real_folder

    from bitwright.cli import main as command

    make_real_folder(folder)
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as printed:
        assert command(QUANTIZE) == 0
        text = printed.getvalue()
        assert command([*REPORT, "-o", "report.html"]) == 0
    (folder / "run.txt").write_text(text, encoding="utf-8")
    return text


def draw_terminal(printed: str) -> str:
    """Return a terminal with the last lines of a run, as SVG."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ bitwright {' '.join(QUANTIZE)}", style="bold green"))
    console.print(Text("...", style="dim"))
    for line in printed.splitlines():
        label, _, rest = line.partition(":")
        if label in (*SHOWN, *LAST):
            console.print(Text.assemble((f"{label}:", "bold"), rest))
    return console.export_svg(title="bitwright")


def shoot(browser: Any, page: str, size: tuple[int, int]) -> Any:
    """Return a picture of what a browser shows at this size."""
    from PIL import Image

    browser.set_window_size(size[0], size[1] + 150)  # above a page stands the browser's own
    browser.get(page)
    time.sleep(2)
    picture = Image.open(io.BytesIO(browser.get_screenshot_as_png()))
    return picture.convert("RGB").crop((0, 0, size[0] - 15, size[1]))  # without the scroll bar


def save(picture: Any, name: str, width: int) -> None:
    """Write a picture in few colours, which is enough for text."""
    from PIL import Image

    smaller = picture.resize((width, picture.height * width // picture.width))
    PICTURES.mkdir(exist_ok=True)
    smaller.quantize(200, Image.Quantize.MAXCOVERAGE).save(PICTURES / name, optimize=True)


def main(folder: str | None = None) -> None:
    """Take all pictures."""
    from check_site import open_browser

    with contextlib.ExitStack() as stack:
        place = Path(folder or stack.enter_context(tempfile.TemporaryDirectory())).resolve()
        kept = place / "run.txt"
        printed = kept.read_text(encoding="utf-8") if kept.exists() else make_run(place)
        browser = open_browser()
        stack.callback(browser.quit)
        report = f"file://{place}/report.html"
        save(shoot(browser, report, (1115, 1180)), "report.png", 900)
        half = io.BytesIO()
        shoot(browser, report, (1115, 760)).save(half, "PNG")
        shown = base64.b64encode(half.getvalue()).decode()
        (place / "front.html").write_text(
            "<body style='margin:0;background:#fff;display:flex;gap:16px;align-items:center;"
            f"padding:8px;width:1480px'><div style='width:740px'>{draw_terminal(printed)}</div>"
            "<img style='width:720px;border:1px solid #bbb;border-radius:8px' "
            f"src='data:image/png;base64,{shown}'></body>",
            encoding="utf-8",
        )
        save(shoot(browser, f"file://{place}/front.html", (1515, 530)), "front.png", 1400)


if __name__ == "__main__":
    main(*sys.argv[1:])
