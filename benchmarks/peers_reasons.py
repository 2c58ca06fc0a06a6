"""Why a peer is better than we are somewhere: the sentences of `peers.py`'s page."""

from __future__ import annotations

import sys

from accuracy import Row

OBSERVED = (
    "without options we record a histogram of every tensor, try three range methods on samples "
    'that were kept out, and open and run what was written (`effort="low"` tries no others)'
)
SHAPES = "our files also have the shapes of the tensors between nodes, and the recipe"
REASONS: dict[tuple[str, str], str] = {
    ("CPU time", ""): f"it observes only smallest and largest values; {OBSERVED}",
    ("memory", ""): f"as with the time, {OBSERVED}",
    ("metric", ""): (
        "it computes few or none of the products in integers, so that little is rounded; its model "
        "is slower than ours, or no smaller than float"
    ),
    ("size", "onnxruntime per channel"): SHAPES,
    ("size", "aimet-onnx"): SHAPES,
    ("size", "nncf"): "it leaves biases float, which saves their scales",
    ("size", "amd-quark"): "it stores one scale for a weight tensor, we one for each channel",
    ("size", "neural-compressor"): (
        "it writes integer operators, of which a small file needs fewer nodes than of Q/DQ pairs, "
        'and no shapes (the former is our `format="qoperator"`)'
    ),
    ("size", "onnx-neural-compressor"): (
        "integer operators as well, and one scale for a weight tensor, not one for each channel"
    ),
    ("integers", ""): (
        "it also quantizes products of two activations inside attention. We leave them float: to "
        "quantize both at every run takes longer than so small a product gains, and none of these "
        "models is faster than ours"
    ),
}
"""(column, tool) -> why; an empty tool stands for those that have no reason of their own."""

BACKGROUND = (
    "most pixels there are one background, so that its value in each channel is rounded alike "
    "nearly everywhere: errors do not average out, and which grid falls well is a matter of "
    "chance. Ours fell badly (22 dB SQNR; 22 to 30 dB when parts of the samples are calibrated "
    'on); `bias_correction="sequential"` gives 31 dB and the metric of float'
)
SINGLE: dict[tuple[str, str, str], str] = {
    **{
        ("metric", tool, "fashion-mobilenet"): BACKGROUND
        for tool in (
            "onnxruntime per channel",
            "nncf",
            "onnxsim",
            "amd-quark",
            "neural-compressor",
            "aimet-onnx",
            "nvidia-modelopt",
        )
    },
    ("size", "aimet-onnx", "silero-vad"): (
        "it also stores the weights of the recurrent layer in 8 bits; the runtime multiplies them "
        "as float, so we leave them as they are"
    ),
}
"""(column, tool, model) -> why, where it is another reason than elsewhere."""


def explain(wins: list[tuple[Row, str]], columns: list[str]) -> list[str]:
    """Return a list item for each column, tool and reason, with the models it holds for."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row, column in wins:
        reason = SINGLE.get(
            (column, row.tool, row.model),
            REASONS.get((column, row.tool), REASONS.get((column, ""), "")),
        )
        if not reason:
            print(f"no reason for {column} of {row.tool} on {row.model}", file=sys.stderr)
            reason = "why is not known"
        found.setdefault((column, reason), {}).setdefault(row.tool, []).append(row.model)
    lines = []
    for (column, reason), tools in found.items():
        who = "; ".join(f"{tool} ({', '.join(models)})" for tool, models in tools.items())
        lines.append(f"* **{column[0].upper()}{column[1:]}**: {who}: {reason}.")
    won = {column for _, column in wins}
    rest = " and ".join(column for column in columns if column not in won)
    return sorted(lines) + ([f"* In no row: {rest}."] if rest else [])
