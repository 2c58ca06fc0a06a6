"""A hook of mkdocs: the version stands at the foot of each page of the website."""

import re
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "src" / "bitwright" / "_version.py"


def on_config(config: Any) -> Any:
    """Put the version where the theme shows a copyright; the package itself is not imported."""
    found = re.search(r'__version__ = "(.+)"', SOURCE.read_text(encoding="utf-8"))
    assert found is not None
    config.copyright = f"Bitwright {found.group(1)}, Apache-2.0"
    return config
