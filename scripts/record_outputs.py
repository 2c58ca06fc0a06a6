"""Put today's output of each command into the pages that show it.

python scripts/record_outputs.py docs/tutorials/cnn.md ...

The commands run on the real models of `tests/support/real_folder.py`. A ```text block behind a
command shows some lines of what it prints: each is replaced by the line of the same label.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.folders import make_folder  # noqa: E402
from support.real_folder import make_real_folder  # noqa: E402
from support.shown_output import run_page  # noqa: E402


def main(*pages: str) -> None:
    """Run each page in a folder of its own, and write it with what was printed."""
    for page in map(Path, pages):
        with tempfile.TemporaryDirectory() as folder:
            make_real_folder(Path(folder))
            make_folder(Path(folder) / "exported")
            text = run_page(page.read_text(encoding="utf-8"), Path(folder))
        page.write_text(text, encoding="utf-8")
        print(page)


if __name__ == "__main__":
    main(*sys.argv[1:])
