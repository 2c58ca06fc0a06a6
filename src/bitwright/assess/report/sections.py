"""The parts of the page that need no script: figures, advice, coverage, outputs, the recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

__all__ = [
    "advice_section",
    "coverage_section",
    "figures_section",
    "outputs_section",
    "recipe_section",
    "sensitivity_section",
    "show_bytes",
    "show_decibels",
    "show_percent",
    "worst_section",
]

Data = Mapping[str, Any]

_TIMES, _ABSENT = "\N{MULTIPLICATION SIGN}", "\N{EN DASH}"
_WORST_ROWS = 25
_RANKED_ROWS = 12
_MOST_ROWS = 40
"""Rows of a table that is read rather than searched; the rest is counted in a last row."""


def figures_section(data: Data) -> str:
    """Return the few numbers that the verdict rests on."""
    figures = []
    if data["outputs"]:
        worst = min(data["outputs"], key=lambda output: float(output["sqnr"] or "-inf"))
        several = len(data["outputs"]) > 1
        figures.append(
            _figure(
                "Signal to noise",
                show_decibels(worst["sqnr"]),
                "dB",
                f"worst of {len(data['outputs'])} outputs" if several else "at the output",
            )
        )
        agreements = [o["agreement"] for o in data["outputs"] if o["agreement"] is not None]
        if agreements:
            note = f"on {_count(data['samples'], 'sample')}"
            figures.append(_figure("Same top answer", f"{100 * min(agreements):.1f}", "%", note))
    small, large = data["quantized"]["bytes"], data["float"]["bytes"]
    sizes = f"{show_bytes(large)} → {show_bytes(small)}"
    figures.append(_figure("Size", *_times(large, small, "smaller", "larger"), sizes))
    latency = data["latency"]
    if latency is not None:
        before, after = latency["float_ms"], latency["quantized_ms"]
        times = f"{before:.3g} → {after:.3g} ms"
        figures.append(_figure("Latency", *_times(before, after, "faster", "slower"), times))
    coverage = data["coverage"]
    left = coverage["nodes"] - coverage["quantized"]
    figures.append(
        _figure(
            "Quantized",
            f"{coverage['quantized']:,}",
            f"of {coverage['nodes']:,} nodes",
            f"{left:,} left float" if left else "none left float",
        )
    )
    return "".join(figures)


def advice_section(data: Data) -> str:
    """Return what to try, each with its command."""
    items = []
    for place, advice in enumerate(data["advice"]):
        command = ""
        if advice["command"] is not None:
            command = (
                '<div class="command">'
                f'<code id="command-{place}">{_command(advice["command"])}</code>'
                f'<button type="button" class="js" data-copy="command-{place}" '
                f'aria-label="Copy the command: {escape(advice["title"])}">Copy</button></div>'
            )
        items.append(
            f"<li><div><h3>{escape(advice['title'])}</h3><p>{escape(advice['why'])}</p>"
            f"{command}</div></li>"
        )
    return "".join(items)


def sensitivity_section(data: Data) -> str:
    """Return the nodes that outputs are most sensitive to, and the fallback; or nothing."""
    found = data["sensitivity"]
    if found is None:
        return ""
    chosen = set(found["proposal"]["nodes"])
    rows = []
    for rank, node in enumerate(found["ranking"], 1):
        if rank > _RANKED_ROWS and node["name"] not in chosen:
            continue
        name = escape(node["name"])
        if node["place"] is not None:
            name = (
                f'<button type="button" class="js" data-choose="{node["place"]}">{name}</button>'
                f'<span class="no-js">{name}</span>'
            )
        share = node["regained"] or 0.0
        rows.append(
            (
                str(rank),
                name,
                _cell(node["op"]),
                show_decibels(node["alone"]),
                show_decibels(node["without"]),
                f"{100 * share:.0f} %",
                _bar(max(share, 0.0), 1.0),
                "fallback" if node["name"] in chosen else "",
            )
        )
    sentence = found["proposal"]["sentence"].replace(" -> ", " → ")
    columns = ("#", "Node", "Op", "Alone, dB", "Without, dB", "Regains", "", "Proposal")
    return (
        '<section id="sensitivity" aria-labelledby="sensitivity-title">'
        '<h2 id="sensitivity-title">What reaches the outputs</h2>'
        f'<p class="proposal">{escape(sentence[:1].upper() + sentence[1:])}.</p>'
        '<p class="hint">Signal to noise of the outputs with only this node quantized, and with '
        "every node but this one; it regains the share of the noise that goes when just this "
        f"node falls back to float. {_count(found['measured'], 'node')} tried on "
        f"{_count(found['samples'], 'sample')}.</p>"
        f'<div class="scroll"><table class="plain ranking">{_rows(columns, rows, (0, 3, 4, 5))}'
        "</table></div></section>"
    )


def worst_section(data: Data) -> str:
    """Return the nodes that lose most as a table, for paper and for pages without script."""
    rows = []
    for rank, place in enumerate(data["worst"][:_WORST_ROWS], 1):
        node = data["nodes"][place]
        rows.append(
            (
                str(rank),
                node["name"],
                node["op"],
                show_decibels(node["alone"]),
                show_decibels(node["sqnr"]),
                show_percent(node["saturated"]),
            )
        )
    columns = ("#", "Node", "Op", "Alone, dB", "Accumulated, dB", "Clipped")
    return _table(columns, rows, numbers=(0, 3, 4, 5))


def coverage_section(data: Data) -> str:
    """Return how many nodes of each op type are quantized, and why the others are not."""
    ops = [
        (
            _cell(row["op"]),
            _bar(row["quantized"], row["nodes"]),
            f"{row['quantized']:,} of {row['nodes']:,}",
        )
        for row in data["coverage"]["ops"]
    ]
    reasons = [
        (_finding(row["reason"]), _cell(row["op"]), f"{row['nodes']:,}")
        for row in data["coverage"]["reasons"]
    ]
    left_out = [
        (_finding(row["reason"]), f"{row['nodes']:,}") for row in data["coverage"]["not_compared"]
    ]
    parts = [_raw_table("By op", ("Op", "", "Quantized"), ops, numbers=(2,))]
    if reasons:
        columns = ("Why left float", "Op", "Nodes")
        parts.append(_raw_table("Left float", columns, reasons, numbers=(2,)))
    if left_out:
        headings = ("Why not compared", "Nodes")
        parts.append(_raw_table("Not compared", headings, left_out, numbers=(1,)))
    return "".join(f"<div>{part}</div>" for part in parts)


def _finding(reason: str) -> str:
    """Return a reason that leads to its nodes in the table."""
    text = escape(reason)
    return (
        f'<button type="button" class="js" data-find="{text}">{text}</button>'
        f'<span class="no-js">{text}</span>'
    )


def outputs_section(data: Data) -> str:
    """Return how far each output is from float."""
    if not data["outputs"]:
        return "<tbody><tr><td>The outputs were not compared.</td></tr></tbody>"
    rows = [
        (
            output["name"],
            show_decibels(output["sqnr"]),
            _show(output["cosine"], ".5f"),
            _show(output["error"], ".3g"),
            show_percent(output["agreement"]),
        )
        for output in data["outputs"]
    ]
    columns = ("Output", "SQNR, dB", "Cosine", "Largest error", "Same top answer")
    return _table(columns, rows, numbers=(1, 2, 3, 4))


def recipe_section(data: Data) -> str:
    """Return what was asked for and what was decided."""
    parts = []
    if data["recipe"] is None and data["plan"] is None:
        return '<p class="hint">The model does not say how it was made.</p>'
    plan = data["plan"]
    if plan is not None:
        facts = f"Plan for {_count(plan['tensors'], 'tensor')}"
        if plan["tool"]:
            facts += f", made by {plan['tool']}"
        parts.append(f'<p class="hint">{escape(facts)}.</p>')
        if plan["notes"]:
            notes = "".join(f"<li>{escape(note)}</li>" for note in plan["notes"])
            parts.append(f'<ul class="notes">{notes}</ul>')
    if data["recipe"] is not None:
        settings = {"recipe": json.loads(data["recipe"])["name"], **data["settings"]}
        rows = (
            f"<div><dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(value)}</dd></div>"
            for name, value in settings.items()
        )
        parts.append(f'<dl class="settings">{"".join(rows)}</dl>')
        parts.append(_document("recipe", "The whole recipe", data["recipe"]))
    if plan is not None and plan["json"] is not None:
        parts.append(
            "<details><summary>The plan</summary>"
            f'<p class="hint">{show_bytes(plan["bytes"])} of JSON: every tensor with its type, '
            "scale and zero point, every node with its decision. Edit it, and apply it with "
            "<code>bitwright apply</code>.</p>"
            '<div class="tools js"><button type="button" data-save="plan">Save plan.json</button>'
            "</div></details>"
        )
    elif plan is not None:
        parts.append(
            f'<p class="hint">The plan itself is {show_bytes(plan["bytes"])} of JSON, too much to '
            "carry along.</p>"
        )
    return "".join(parts)


def _document(key: str, title: str, text: str) -> str:
    return (
        f'<details><summary>{title}</summary><pre id="{key}-text">{escape(text)}</pre>'
        f'<div class="tools js"><button type="button" data-copy="{key}-text">Copy</button>'
        f'<button type="button" data-save="{key}">Save {key}.json</button></div></details>'
    )


def _command(words: str) -> str:
    """Return a command whose options stay with their values where a line breaks."""
    parts = re.split(r" (?=--?[a-z])", words)
    return " ".join(f"<span>{escape(part)}</span>" for part in parts)


def _figure(name: str, value: str, unit: str, note: str) -> str:
    return (
        f'<div><dt>{escape(name)}</dt><dd>{escape(value)} <span class="unit">{escape(unit)}</span>'
        f'<div class="note">{escape(note)}</div></dd></div>'
    )


def _times(before: float, after: float, better: str, worse: str) -> tuple[str, str]:
    ratio = max(before, 1e-9) / max(after, 1e-9)
    return (f"{ratio:.2f}{_TIMES}", better) if ratio >= 1 else (f"{1 / ratio:.2f}{_TIMES}", worse)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> str:
    return _rows(columns, [[_cell(cell) for cell in row] for row in rows], numbers)


def _raw_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]
) -> str:
    return f'<table class="plain"><caption>{title}</caption>{_rows(columns, rows, numbers)}</table>'


def _rows(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> str:
    def line(tag: str, cells: Iterable[str]) -> str:
        marked = (
            f'<{tag} class="number">{cell}</{tag}>'
            if place in numbers
            else f"<{tag}>{cell}</{tag}>"
            for place, cell in enumerate(cells)
        )
        return f"<tr>{''.join(marked)}</tr>"

    body = [line("td", row) for row in rows[:_MOST_ROWS]]
    if len(rows) > _MOST_ROWS:
        more = f"and {len(rows) - _MOST_ROWS:,} more"
        body.append(f'<tr><td colspan="{len(columns)}">{more}</td></tr>')
    return f"<thead>{line('th', map(escape, columns))}</thead><tbody>{''.join(body)}</tbody>"


def _cell(text: str) -> str:
    return escape(text)


def _bar(part: float, whole: float) -> str:
    share = 100 * part / whole
    return (
        '<svg class="share" aria-hidden="true"><rect class="all" width="100%" height="8" rx="2"/>'
        f'<rect class="done" width="{share:.4g}%" height="8" rx="2"/></svg>'
    )


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"


def _show(value: Any, form: str) -> str:
    return _ABSENT if value is None else format(float(value), form)


def show_decibels(value: Any) -> str:
    """Return a ratio for a reader.

    >>> show_decibels(31.25), show_decibels("Infinity"), show_decibels(None)
    ('31.2', 'exact', '\u2013')
    """
    return "exact" if value == "Infinity" else _show(value, ".1f")


def show_percent(value: float | None) -> str:
    """Return a share for a reader.

    >>> show_percent(0.0314), show_percent(0), show_percent(0.00001), show_percent(None)
    ('3.14 %', '0 %', '<0.01 %', '\u2013')
    """
    if value is None:
        return _ABSENT
    if value == 0:
        return "0 %"
    return "<0.01 %" if value < 0.0001 else f"{100 * value:.{2 if value < 0.1 else 1}f} %"


def show_bytes(size: int) -> str:
    """Return a size for a reader.

    >>> show_bytes(25_557_032), show_bytes(390)
    ('25.6 MB', '390 bytes')
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
