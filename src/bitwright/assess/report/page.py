"""The page: the report's data, its style and its script put into one HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from bitwright.assess.report import sections

__all__ = ["render_page"]

_SCRIPTS = ("drawing.js", "chart.js", "table.js", "detail.js", "main.js")
_SURROGATE = re.compile("[\ud800-\udfff]")
_PLACE = re.compile(r"@@(\w+)@@")


def render_page(data: Mapping[str, Any]) -> str:
    """Return one HTML file that shows the report: no network, no other file, no risk.

    What comes from the model is escaped; on top of that, the page's own content security policy
    lets nothing run but the one script it was made with, known by its hash.
    """
    style = _asset("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_asset, _SCRIPTS)) + "\n})();"
    names = data["float"]["name"], data["quantized"]["name"]
    values = {
        "policy": (
            f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
            "base-uri 'none'; form-action 'none'"
        ),
        "tool": escape(data["tool"]),
        "title": escape(f"{names[1]}: quantization report"),
        "style": style,
        "heading": f'{escape(names[1])} <span class="was">from {escape(names[0])}</span>',
        "level": data["verdict"]["level"],
        "verdict": escape(data["verdict"]["sentence"]),
        "figures": sections.figures_section(data),
        "advice": sections.advice_section(data),
        "sensitivity": sections.sensitivity_section(data),
        "worst": sections.worst_section(data),
        "coverage": sections.coverage_section(data),
        "outputs": sections.outputs_section(data),
        "recipe": sections.recipe_section(data),
        "footer": escape(_footer(data)),
        "data": _json(data),
        "script": script,
    }
    # One pass: what is put in is never looked through again.
    page = _PLACE.sub(lambda found: values[found.group(1)], _asset("page.html"))
    # A file's name that is no UTF-8 comes with lone surrogates, which no file can hold.
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", page)


def _footer(data: Mapping[str, Any]) -> str:
    parts = [f"Made by {data['tool']}"]
    if data["samples"]:
        samples = "1 sample" if data["samples"] == 1 else f"{data['samples']:,} samples"
        parts.append(
            f"errors measured on {samples}" + (f" of {data['data']}" if data["data"] else "")
        )
    if data["latency"] is not None and data["latency"]["detail"]:
        parts.append(f"latency: {data['latency']['detail']}")
    return "; ".join(parts) + "."


def _json(data: Mapping[str, Any]) -> str:
    """Return JSON that cannot end the element it stands in."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = _SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _asset(name: str) -> str:
    return files("bitwright.assess.report").joinpath("assets", name).read_text(encoding="utf-8")
