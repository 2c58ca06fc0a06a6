"""Sensitivity of the outputs to each node, and the fallback that regains most of the loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from bitwright.assess.judge import Interval
from bitwright.assess.outputs import TotalError
from bitwright.assess.rendering import show_decibels
from bitwright.assess.sums import decibels
from bitwright.errors import PlanError
from bitwright.plan import FALLBACK_NAMES, Fallback, QuantPlan
from bitwright.support import Section, Summarized, counted, data_frame, plain_fields


@dataclass(frozen=True, slots=True)
class NodeSensitivity:
    """What one quantized node does to the outputs; errors are noise over signal.

    >>> node = NodeSensitivity("fc", "Gemm", alone=0.001, without=0.003, quantized=0.004)
    >>> node.alone_sqnr, round(node.regained, 3)
    (30.0, 0.25)
    """

    name: str
    op: str
    alone: float
    """The error of the outputs when only this node is quantized."""
    without: float
    """The error when every node but this one is."""
    quantized: float
    """The error when all are."""
    losses: tuple[float, float, float] | None = None
    """The same three as the judge sees them (see `Judgement.power`), which nodes are ranked by;
    None: as the noise is."""

    @classmethod
    def measured(
        cls, name: str, op: str, alone: TotalError, without: TotalError, quantized: TotalError
    ) -> NodeSensitivity:
        """Return what was measured of a node."""
        losses = (alone.loss, without.loss, quantized.loss)
        return cls(name, op, alone.noise, without.noise, quantized.noise, losses)

    @property
    def alone_sqnr(self) -> float:
        """`alone` in dB."""
        return decibels(1.0, self.alone)

    @property
    def without_sqnr(self) -> float:
        """`without` in dB."""
        return decibels(1.0, self.without)

    @property
    def regained(self) -> float:
        """The share of the judged loss that goes when just this node falls back to float."""
        _, without, quantized = self._judged
        return 1 - without / quantized if quantized else 0.0

    @property
    def _judged(self) -> tuple[float, float, float]:
        return self.losses or (self.alone, self.without, self.quantized)

    @property
    def weight(self) -> float:
        """What it is ranked by: the error that it makes, and the error that goes with it.

        The first sees damage that other nodes do as well, the second what is made worse by it.
        """
        alone, without, quantized = self._judged
        return alone + max(quantized - without, 0.0)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan in which some nodes fall back, and what that regains; measured, not estimated.

    `Sensitivity.proposal` makes one:

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> data = demo.calibration[:4]
    >>> plan = bitwright.make_plan(demo.model_path, data=data)
    >>> proposal = bitwright.find_sensitivity(demo.model_path, plan, data=data).proposal(0.5)
    >>> {proposal.plan.nodes[name].action for name in proposal.nodes}
    {'float'}
    """

    plan: QuantPlan
    nodes: tuple[str, ...]
    """The nodes that fall back, the most important first."""
    to: Fallback
    quantizable: int
    """How many nodes were quantized before."""
    before: float
    after: float
    """The error of the outputs, noise over signal, before and after."""
    wanted: float
    loss_before: float
    loss: float
    """The same as the judge sees them, squared."""
    interval: Interval | None = None
    """Of `regained`, with a confidence of 90 %, by a bootstrap over the samples that it was chosen
    on; None with fewer than eight."""

    @property
    def regained(self) -> float:
        """The share of the judged loss that is gone."""
        return 1 - self.loss / self.loss_before if self.loss_before else 0.0

    @property
    def reached(self) -> bool:
        """Whether as much as was wanted is regained."""
        return self.regained >= self.wanted

    @property
    def sqnr_before(self) -> float:
        """SQNR of the outputs before, in dB."""
        return decibels(1.0, self.before)

    @property
    def sqnr(self) -> float:
        """SQNR of the outputs with the plan, in dB."""
        return decibels(1.0, self.after)

    def describe(self) -> str:
        """Return the proposal as a sentence."""
        if not self.nodes:
            return f"no fallback: no node helps, {self.sqnr:.1f} dB SQNR is what there is"
        nodes = counted(len(self.nodes), "node")
        found = self.interval
        sure = "" if found is None else f" ({100 * found.low:.0f} to {100 * found.high:.0f})"
        return (
            f"fall back to {FALLBACK_NAMES[self.to]} for {nodes} of {self.quantizable} and regain "
            f"{100 * self.regained:.0f} %{sure} of the loss: "
            f"{self.sqnr_before:.1f} dB -> {self.sqnr:.1f} dB SQNR"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the proposal, without its plan, as plain data."""
        names = ("nodes", "to", "quantizable", "regained", "reached", "sqnr_before", "sqnr")
        return plain_fields(self, *names, "loss_before", "loss", "interval")


@dataclass(frozen=True, slots=True, repr=False)
class Sensitivity(Summarized):
    """How much each quantized node adds to the error of the outputs.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> data = demo.calibration[:4]
    >>> plan = bitwright.make_plan(demo.model_path, data=data)
    >>> found = bitwright.find_sensitivity(demo.model_path, plan, data=data)
    >>> found.ranking[0].weight > found.ranking[-1].weight
    True
    """

    plan: QuantPlan
    quantized: float
    """The error of the outputs with the plan as it is: noise over signal, mean over outputs."""
    nodes: list[NodeSensitivity]
    """In graph order."""
    samples: int
    _propose: Callable[[Sensitivity, float, int, Fallback], Proposal] = field(repr=False)
    """Measures fallbacks of the plan, and returns that with the fewest nodes, of so many at most,
    that regains this share."""
    loss: float | None = None
    """The same as the judge sees it, squared (see `Judgement.power`)."""

    @property
    def sqnr(self) -> float:
        """SQNR of the outputs with the plan as it is, in dB."""
        return decibels(1.0, self.quantized)

    @property
    def ranking(self) -> list[NodeSensitivity]:
        """The nodes, the most sensitive first."""
        return sorted(self.nodes, key=lambda node: -node.weight)

    def proposal(
        self, regain: float = 0.8, *, most: float = 0.1, to: Fallback = "float"
    ) -> Proposal:
        """Return the plan with the fewest fallbacks that regains this share of the loss.

        The loss is what the judge sees in the outputs, squared; where all are judged by SQNR, it is
        their noise, and 0.8 means that a fifth of it is left, 7 dB. At most
        the share `most` of the quantized nodes falls back. Every step is measured on the samples,
        and so is the plan that comes out; whether fewer nodes could do is not proved.
        """
        for name, share in (("regain", regain), ("most", most)):
            if not 0 < share <= 1:
                raise PlanError(f"{name} is a share between 0 and 1, not {share}.")
        total = sum(node.quantized for node in self.plan.nodes.values())
        return self._propose(self, regain, max(1, math.floor(most * total)), to)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the plan as plain data, the ranking first."""
        derived = ("alone_sqnr", "without_sqnr", "regained")
        rows = [asdict(node) | plain_fields(node, *derived) for node in self.ranking]
        return {**plain_fields(self, "samples", "sqnr", "quantized", "loss"), "ranking": rows}

    def summary(self, n: int = 5) -> str:
        """Return the error of the outputs and the most sensitive nodes, in a few lines."""
        head = f"{self.sqnr:.1f} dB SQNR with {counted(len(self.nodes), 'quantized node')} on "
        lines = [
            f"{node.op} {node.name!r}: {node.alone_sqnr:.1f} dB where only it is quantized, "
            f"{node.without_sqnr:.1f} dB where all but it are"
            for node in self.ranking[:n]
        ]
        return "\n".join([head + counted(self.samples, "sample"), *lines])

    def sections(self, *, verbose: bool = False) -> list[Section]:
        """Return the figures in a table."""
        rows = [
            (
                node.name,
                node.op,
                show_decibels(node.alone_sqnr),
                show_decibels(node.without_sqnr),
                f"{100 * node.regained:.0f} %",
            )
            for node in (self.ranking if verbose else self.ranking[:10])
        ]
        columns = ("node", "op", "alone dB", "without dB", "regains")
        return [("The most sensitive nodes", columns, rows)]

    def to_pandas(self) -> Any:
        """Return the ranking as a pandas DataFrame."""
        return data_frame(self.to_dict()["ranking"])
