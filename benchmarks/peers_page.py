"""The page of `peers.py`: what was measured, in tables, and where a peer is better than we are."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from accuracy import Row, latency_cell, middle
from accuracy_tasks import SOURCES
from peers_reasons import explain

OURS = "bitwright"


@dataclass(frozen=True)
class Tool:
    package: str
    settings: str
    """As its documentation has them for CPUs, in words."""


TOOLS = {
    OURS: Tool("bitwright", "no option"),
    "bitwright medium": Tool("bitwright", '`effort="medium"`'),
    "onnxruntime per channel": Tool(
        "onnxruntime", "`quantize_static`: QDQ, uint8 and int8 per channel, MinMax"
    ),
    "nncf": Tool("nncf", "`nncf.quantize`, with `model_type` for transformers"),
    "onnxsim": Tool("onnxsim", "`quantize_static`; it simplifies, and quantizes, too"),
    "amd-quark": Tool("amd-quark", "`ModelQuantizer`, configuration `U8S8_AAWS`"),
    "neural-compressor": Tool(
        "neural-compressor",
        "`quantization.fit`, static, on the model as it is; 2.6, since 3.x knows no ONNX",
    ),
    "onnx-neural-compressor": Tool(
        "onnx-neural-compressor", "`StaticQuantConfig`, no option, on the model as it is"
    ),
    "aimet-onnx": Tool(
        "aimet-onnx", "`QuantizationSimModel`, no option, `to_onnx_qdq`; made for Qualcomm"
    ),
    "nvidia-modelopt": Tool(
        "nvidia-modelopt", "`quantize`, int8 by entropy, the rest float32; made for TensorRT"
    ),
}
"""From the name in `accuracy_worker.TOOLS` to where it comes from."""

HEADER = (
    "tool", "metric (95 %)", "to float (95 %)", "size", "integers", "latency (10 to 90 %)",
    "CPU time", "memory",
)  # fmt: skip
"""Columns; those that a peer can win are in `WINS`."""
SUMMARY_HEADER = (
    "tool", "models", "as good as float", "integers", "latency", "latency, ours 1", "CPU time",
    "memory",
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    row: Row
    draws: np.ndarray | None
    facts: dict[str, Any]


def read(found: dict[str, Any]) -> Result:
    row = Row(**{k: tuple(v) if isinstance(v, list) else v for k, v in found["row"].items()})
    draws = None if found["draws"] is None else np.array(found["draws"])
    return Result(row, draws, found)


def has_better_metric(peer: Result, ours: Result) -> bool:
    """Whether the metric is higher in 97.5 % of the resamples, which both share."""
    if peer.draws is None or ours.draws is None:
        return False
    return middle(peer.draws - ours.draws)[0] > 0


WINS: dict[str, Callable[[Result, Result], bool]] = {
    "metric": has_better_metric,
    "size": lambda peer, ours: peer.row.size < 0.98 * ours.row.size,
    "integers": lambda peer, ours: peer.row.integer_work > ours.row.integer_work + 0.01,
    "latency": lambda peer, ours: peer.row.latency_interval[1] < ours.row.latency_interval[0],
    "CPU time": lambda peer, ours: peer.row.process_seconds < 0.9 * ours.row.process_seconds,
    "memory": lambda peer, ours: peer.row.peak < 0.95 * ours.row.peak,
}
"""Column -> whether a peer is better there, by more than what two runs differ."""


def find_wins(peer: Result, ours: Result | None) -> set[str]:
    """Return the columns in which a peer is better than we are."""
    if peer.row.tool == "float" or peer.row.tool.startswith(OURS):
        return set()
    if ours is None or peer.row.error or ours.row.error:
        return set()
    return {column for column, is_better in WINS.items() if is_better(peer, ours)}


def cells(result: Result, won: set[str]) -> list[str]:
    """Return a row of a model's table, what a peer won in bold."""
    row = result.row
    if row.error:
        return [row.tool, f"fails: {escape(row.error)}", *[""] * (len(HEADER) - 2)]
    metric = "{:.1f} ({:.1f} to {:.1f})".format(*(100 * x for x in (row.score, *row.interval)))
    if row.tool == "float":
        return ["float", metric, "", f"{row.size:.2f} MB", "0 %", "1", "", ""]
    lost = row.difference, *row.difference_interval
    shown = {
        "metric": metric,
        "to float": "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * x for x in lost)),
        "size": f"{row.size:.2f} MB",
        "integers": f"{row.integer_work:.0%}".replace("%", " %"),
        "latency": latency_cell(row),
        "CPU time": f"{row.process_seconds:.1f} s",
        "memory": f"{row.peak:.0f} MB",
    }
    return [row.tool, *(f"**{x}**" if name in won else x for name, x in shown.items())]


def escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def table(header: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(x)} |" for x in (list(header), *rows)]
    return [lines[0], "|" + "---|" * len(header), *lines[1:], ""]


def summarize(tool: str, results: list[Result], ours: dict[str, Row]) -> list[str]:
    """Return a tool's row of the first table."""
    done = [x.row for x in results if not x.row.error]
    if not done:
        return [tool, f"0 of {len(results)}", *[""] * 6]
    beside = statistics.geometric_mean(
        [row.latency_ratio / ours[row.model].latency_ratio for row in done if row.model in ours]
    )
    kept = sum(row.difference_interval[1] >= 0 for row in done)
    half = statistics.median
    share = f"{half(row.integer_work for row in done):.0%}".replace("%", " %")
    return [
        tool, f"{len(done)} of {len(results)}", str(kept), share,
        f"{half(row.latency_ratio for row in done):.2f}", f"{beside:.2f}",
        f"{half(row.process_seconds for row in done):.1f} s",
        f"{half(row.peak for row in done):.0f} MB",
    ]  # fmt: skip


def tool_row(tool: str, results: list[Result]) -> list[str]:
    found = next((x.facts["versions"] for x in results if x.facts.get("versions")), {})
    package = TOOLS[tool].package
    beside = [f"{name} {found[name]}" for name in ("onnxruntime", "onnxruntime-gpu", "torch")
              if name in found and name != package]  # fmt: skip
    version = f"{package} {found.get(package, '')}".strip()
    days = sorted({x.facts["date"] for x in results})
    commits = sorted({x.facts["commit"] for x in results if x.facts.get("commit")})
    measured = " to ".join(days if len(days) < 3 else [days[0], days[-1]])
    measured += f", commit {' and '.join(commits)}" if commits else ""
    return [tool, version, ", ".join(beside), measured, TOOLS[tool].settings]


def write_page(found: list[dict[str, Any]]) -> str:
    """Return the page, in Markdown."""
    results = [read(each) for each in found]
    models = list(dict.fromkeys(x.row.model for x in results))
    tools = [tool for tool in TOOLS if any(x.row.tool == tool for x in results)]
    by = {(x.row.model, x.row.tool): x for x in results}
    of_tool = {tool: [by[m, tool] for m in models if (m, tool) in by] for tool in tools}
    ours_by_model = {x.row.model: x.row for x in of_tool.get(OURS, []) if not x.row.error}
    samples = next(x.facts["samples"] for x in results if "samples" in x.facts)
    machine = results[0].facts["machine"]
    wins: list[tuple[Result, str]] = []
    sections: list[str] = []
    measured = {tool: {model for model, other in by if other == tool} for tool in tools}
    for model in models:
        rows = []
        ours = by.get((model, OURS))
        for tool in ("float", *tools):
            if (model, tool) in by:
                result = by[model, tool]
                won = find_wins(result, ours)
                wins += [(result, column) for column in WINS if column in won]
                rows.append(cells(result, won))
        sections += [f"### {model}", "", describe(by[model, "float"].row), ""]
        sections += table(HEADER, rows)
    return "\n".join(
        [
            INTRODUCTION.format(samples=samples, machine=machine),
            *table(("tool", "version", "beside", "measured", "settings"),
                   [tool_row(t, of_tool[t]) for t in tools]),
            "## All models",
            "",
            SUMMARY + name_missing(models, measured),
            "",
            *table(
                SUMMARY_HEADER,
                [summarize(tool, of_tool[tool], ours_by_model) for tool in tools],
            ),
            "## Where a peer is better",
            "",
            *explain([(x.row, column) for x, column in wins], [*WINS]),
            "",
            "## Each model",
            "",
            *sections,
        ]
    )  # fmt: skip


def name_missing(models: list[str], done: dict[str, set[str]]) -> str:
    """Return a sentence on what has no rows yet: models of the benchmark, and models of a tool."""
    missing = [name for name in SOURCES if name not in models]
    missing += [
        f"{', '.join(absent)} by {tool}"
        for tool, found in done.items()
        if (absent := [name for name in models if name not in found])
    ]
    return f" Not measured here: {'; '.join(missing)}." if missing else ""


def describe(row: Row) -> str:
    """Return what a model's metric is, and where its labels come from."""
    source = SOURCES[row.model]
    packages = ", ".join(f"`{name}`" for name in source.packages)
    return f"Metric: {row.metric}. Labels: {source.labels}. From {packages}."


INTRODUCTION = """\
# Results: other tools and ours

Trained models with labels, quantized to 8 bits by every tool for ONNX models that installs, from
the same {samples} samples, and measured on other samples. This page is written by

```text
make bench-peers
```

which makes an environment for each tool (pinned in `benchmarks/requirements`) and goes on where it
was stopped; `python benchmarks/peers.py run --again nncf` measures a tool once more. It was taken
on {machine}, beside other work: compare CPU times and ratios, which were taken in turn.
A peer gets the model as ONNX Runtime's documentation asks for it
(`quant_pre_process`, opset 13 or newer), which is not timed. All models are run by the same ONNX
Runtime, the one beside our row. Rows of other tools, whose versions are pinned, are kept in
`benchmarks/peers.jsonl.gz` with the day of each; a model whose float scores differ from those
kept there is measured again by all tools.

* **Metric**: the user's, in percent, on samples that were not calibrated on, with a 95 % interval
  from 1,000 bootstrap resamples. **To float** is the difference from float on the same resamples.
* **Size**: of the file, external data included.
* **Integers**: the share of multiply-adds that ONNX Runtime computes in integer kernels, by its own
  profile of one run at its default optimization: not what the file says, but what is run.
* **Latency**: CPU time of one thread for one sample, in turn with the float model as it came, which
  is 1, in parentheses the 10th and the 90th percentile of the turns. The [prepared float
  model](../assess.md#time), which users of ours have anyway, takes less than that one: these ratios
  compare tools, and say too much of what integers gain.
* **CPU time** and **memory** (peak resident size): of the process that quantizes, from its start.

In **bold**: a peer is better than our default there, by more than the interval (metric), the
spread (latency), 1 point (integers), 2 % (size), 10 % (time) or 5 % (memory).

## Tools
"""

SUMMARY = """\
Medians over the models that a tool quantized so that they run. *As good as float* counts those of
them whose interval of the difference from float does not lie below zero as a whole. *Latency, ours
1* is the geometric mean of the ratio to ours on the same models: the median has other models where
a tool failed."""
