"""The report's data, its style and its script rendered into one HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from bitwright.assess.clock import Clock
from bitwright.assess.rendering import render_template, show_decibels
from bitwright.support.wording import show_bytes

_SCRIPTS = ("drawing.js", "chart.js", "front.js", "graph.js", "table.js", "detail.js", "main.js")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Figure(NamedTuple):
    """One of the few numbers that the verdict rests on."""

    name: str
    value: str
    unit: str
    note: str


def render_page(data: Mapping[str, Any]) -> str:
    """Return one HTML file that shows the report: no network, no other file, no risk.

    What comes from the model is escaped; on top of that, the page's own content security policy
    lets nothing run but the script it was made with and the one that lays out graphs, known by
    their hashes. The second stands there as text until the graph is looked at.
    """
    from markupsafe import Markup

    style = _asset("page.css")
    library = _asset("dagre.js")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_asset, _SCRIPTS)) + "\n})();"
    page = render_template(
        "page.html",
        policy=Markup(
            f"default-src 'none'; script-src '{_hash(script)}' '{_hash(library)}'; "
            f"style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"
        ),
        data=data,
        figures=list(list_figures(data)),
        style=Markup(style),
        script=Markup(script),
        library=Markup(library),
        json=Markup(_json(data)),
    )
    # A file's name that is no UTF-8 comes with lone surrogates, which no file can hold.
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", page)


def list_figures(data: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield accuracy, size, time and coverage, as far as they were measured."""
    outputs, clock, coverage = data["outputs"], data["clock"], data["coverage"]
    if outputs:
        worst = min(outputs, key=lambda output: float(output["sqnr"] or "-inf"))
        where = f"worst of {len(outputs)} outputs" if len(outputs) > 1 else "at the output"
        yield Figure("Signal to noise", show_decibels(worst["sqnr"]), "dB", where)
    agreements = [each["agreement"] for each in outputs if each["agreement"] is not None]
    if agreements:
        seen = "1 sample" if data["samples"] == 1 else f"{data['samples']:,} samples"
        yield Figure("Same top answer", f"{100 * min(agreements):.1f}", "%", f"on {seen}")
    before, after = data["float"]["bytes"], data["quantized"]["bytes"]
    sizes = f"{show_bytes(before)} → {show_bytes(after)}"
    yield Figure("Size", *_ratio(before, after, "smaller", "larger"), sizes)
    if clock is not None:
        shown = Clock.of_dict(clock)
        times = f"{shown.float_ms:.3g} → {shown.quantized_ms:.3g} ms"
        note = f"{shown.interval()}, {shown.where}: {times}"
        yield Figure("Time", shown.figure(), "of prepared float's", note)
    else:
        yield Figure("Time", "\N{EN DASH}", "not measured", data["untimed"])
    kernels = data["integer_kernels"]
    if kernels is not None and kernels["products"]:
        share, products = kernels["share"], f"of {kernels['products']:,} products"
        note = "" if share is None else f"{100 * share:.0f} % of multiply-adds"
        yield Figure("Integer kernels", f"{kernels['integer_products']:,}", products, note)
    left = coverage["nodes"] - coverage["quantized"]
    yield Figure(
        "Quantized",
        f"{coverage['quantized']:,}",
        f"of {coverage['nodes']:,} nodes",
        f"{left:,} left float" if left else "none left float",
    )


def _ratio(before: float, after: float, better: str, worse: str) -> tuple[str, str]:
    ratio = max(before, 1e-9) / max(after, 1e-9)
    return f"{max(ratio, 1 / ratio):.2f}\N{MULTIPLICATION SIGN}", better if ratio >= 1 else worse


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
