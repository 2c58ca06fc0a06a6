"""Results of a comparison: errors of outputs, tensors, nodes and weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from bitwright.assess.coverage import Coverage
from bitwright.assess.judge import Judgement
from bitwright.assess.outputs import OutputComparison
from bitwright.assess.rendering import show_decibels, show_figure, show_percent
from bitwright.graph.decisions import Decisions
from bitwright.support import check_arguments, counted
from bitwright.support.showing import Section, Summarized, data_frame, plain_fields


@dataclass(frozen=True, slots=True)
class TensorComparison:
    """One tensor of the quantized model against the same of the float model.

    >>> TensorComparison("y", sqnr=30.0, cosine=0.999, max_error=0.1).local_sqnr is None
    True
    """

    name: str
    sqnr: float
    """Signal to quantization noise in dB, of all errors up to here; infinite without any."""
    cosine: float
    max_error: float
    local_sqnr: float | None = None
    """The same if only the node that makes the tensor is quantized; None: not measured."""
    channel_sqnr: float | None = None
    """Local, and every channel counts alike: a few large channels hide nothing."""
    saturated: float | None = None
    """Share of values that are cut off at the ends of the integer range; None without integers."""
    used: float | None = None
    """Share of the integer range between the smallest and the largest integer seen."""


@dataclass(frozen=True, slots=True)
class NodeComparison:
    """One node of the quantized model, with the errors of the tensor that it makes.

    >>> NodeComparison("exp", "Exp", 3, 2, "float", "no rule for Exp", "y").sqnr is None
    True
    """

    name: str
    op: str
    index: int
    """Its place in graph order."""
    depth: int
    """How many nodes the longest way from an input has."""
    action: str
    """"quantized" or "float"."""
    reason: str | None
    """Why it is float, where that is known."""
    output: str
    sqnr: float | None = None
    cosine: float | None = None
    max_error: float | None = None
    local_sqnr: float | None = None
    channel_sqnr: float | None = None
    saturated: float | None = None
    used: float | None = None
    nodes: tuple[str, ...] = ()
    """The nodes that are computed as one with it, such as a Conv and its Relu."""
    unmeasured: str | None = None
    """Why there are no errors, where there are none."""
    reads: tuple[int, ...] = ()
    """Places of the nodes whose results it reads, with only scales and layouts in between."""

    def describe(self) -> str:
        """Return the node as one line.

        >>> node = NodeComparison("fc", "Gemm", 0, 0, "quantized", None, "y", sqnr=30.0)
        >>> node.describe()
        "Gemm 'fc': 30.0 dB SQNR"
        """
        text = f"{self.op} {self.name!r}"
        if self.sqnr is not None:
            text += f": {self.sqnr:.1f} dB SQNR"
        if self.local_sqnr is not None:
            text += f", {self.local_sqnr:.1f} dB on its own"
        if self.saturated:
            text += f", {self.saturated:.2%} cut off".replace("%", " %")
        return text


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Summarized):
    """Two models on the same samples: how far apart they are, and where that happens.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> result = bitwright.quantize(demo.model_path, data=demo.calibration[:8])
    >>> found = bitwright.compare(demo.model_path, result.model, data=demo.calibration[:2])
    >>> found.outputs[0].sqnr > 20, found.nodes[0].name
    (True, 'stem_conv')
    """

    outputs: list[OutputComparison]
    tensors: dict[str, TensorComparison]
    nodes: list[NodeComparison]
    """In graph order."""
    samples: int
    weights: dict[str, float] = field(default_factory=dict)
    """Weight -> SQNR of its dequantized numbers against the float ones, in dB."""
    judgement: Judgement | None = None
    """The loss of all outputs: by what each holds, part by part, with intervals."""
    coverage: Coverage | None = None
    """The products that the runtime computes in integers; None where it was not looked at."""
    decided: Decisions | None = None
    """What the quantized model says of its nodes, where it is one of ours."""

    @check_arguments
    def worst(self, n: int = 10) -> list[NodeComparison]:
        """Return the quantized nodes that lose most on their own, the worst first.

        Every channel of a node's output counts alike: a weight with one huge channel may leave
        nothing of the others, which the energy of the whole would not show. Nodes within the same
        0.1 dB, which no table tells apart, are in graph order.
        """
        found = [
            (round(node.channel_sqnr, 1), node.index, node)
            for node in self.nodes
            if node.channel_sqnr is not None
        ]
        return [node for *_, node in sorted(found, key=lambda entry: entry[:2])][:n]

    @property
    def left_out(self) -> dict[str, list[NodeComparison]]:
        """Reason -> the nodes whose results were not compared because of it."""
        found: dict[str, list[NodeComparison]] = {}
        for node in self.nodes:
            if node.unmeasured is not None:
                found.setdefault(node.unmeasured, []).append(node)
        return found

    @check_arguments
    def summary(self, n: int = 5) -> str:
        """Return the outputs and the worst nodes in a few lines."""
        seen = counted(self.samples, "sample")
        lines = [f"On {seen}, {output.describe()}" for output in self.outputs]
        if self.coverage is not None:
            lines.append(f"Integer kernels: {self.coverage.describe()}")
        if self.judgement is not None:
            lines += self.judgement.notes
        lines += [f"Loses most: {node.describe()}" for node in self.worst(n)]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            **plain_fields(self, "samples", "outputs", "judgement", "coverage", "weights"),
            "nodes": [asdict(node) for node in self.nodes],
            "tensors": [asdict(tensor) for tensor in self.tensors.values()],
        }

    def sections(self, *, verbose: bool = False, n: int = 10) -> list[Section]:
        """Return the nodes that lose most, or all of them."""
        title, nodes = f"The {n} nodes that lose most on their own", self.worst(n)
        if verbose:
            title, nodes = "All nodes in graph order", self.nodes
        elif len(nodes) < n:
            title = "What each node loses on its own"
        columns = ("node", "op", "by channel dB", "alone dB", "accumulated dB", "max error")
        rows = [
            (
                node.name,
                node.op,
                *map(show_decibels, (node.channel_sqnr, node.local_sqnr, node.sqnr)),
                show_figure(node.max_error, ".3g"),
                show_percent(node.saturated),
                show_percent(node.used),
            )
            for node in nodes
        ]
        return [(title, (*columns, "saturated", "used"), rows)]

    def to_pandas(self) -> Any:
        """Return the nodes as a pandas DataFrame."""
        return data_frame([asdict(node) for node in self.nodes])
