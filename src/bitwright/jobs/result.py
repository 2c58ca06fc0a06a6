"""The result of a job: the quantized model, its plan, its size and its error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import onnx
import onnx_ir as ir

from bitwright import graph
from bitwright.assess import Clock, Judgement, OutputComparison, Perplexity, output_section
from bitwright.assess.coverage import Coverage, find_coverage
from bitwright.assess.verdict import Verdict, judge_model, may_ship, verdict_lines
from bitwright.data import Sample
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe
from bitwright.support import check_arguments, counted, show_bytes, show_ratio
from bitwright.support.showing import Section, Summarized, data_frame, plain_fields


@dataclass(slots=True, repr=False)
class Result(Summarized):
    """A quantized model with the plan that made it and how it compares with the float one.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> data = demo.calibration[:8]
    >>> result = bitwright.quantize(demo.model_path, data=data, purpose="size")
    >>> result.quantized["Conv"], result.size < result.float_size / 3
    (7, True)
    """

    _heading = "Quantized model"

    model: ir.Model = field(repr=False)
    plan: QuantPlan = field(repr=False)
    outputs: list[OutputComparison]
    """Each output against float, on holdout samples; empty where there was no data."""
    samples: int
    samples_are_unseen: bool
    data: str
    float_size: int
    source: Any = None
    path: Path | None = None
    evaluation: Sequence[Sample] = field(default=(), repr=False)
    """The samples that it was measured on."""
    judgement: Judgement | None = field(default=None, repr=False)
    """The loss of all outputs: by what each holds, part by part, with intervals."""
    clock: Clock | None = None
    """Its time beside the prepared float model's; None: not timed, or not to be timed here."""
    untimed: str = "it was not asked for"
    """Why it has no time."""
    _coverage: Coverage | Literal["unknown"] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    _size: int | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def size(self) -> int:
        """Bytes on disk once it is saved; before, those that one file will have."""
        if self._size is None:
            self._size = graph.written_size(self.model)
        return self._size

    @size.setter
    def size(self, size: int) -> None:
        self._size = size

    @property
    def coverage(self) -> Coverage | None:
        """The products that ONNX Runtime computes in integers; None where it cannot be opened.

        A conversion to float16 or bfloat16 has no integers, and none are looked for. The runtime
        optimizes the model for this once, when it is first asked for; not one that is too large to
        be run beside float.
        """
        large = self.float_size > graph.MAX_HELD_BYTES and not self.evaluation
        if self.plan.recipe.mode == "cast" or large:
            return None
        if self._coverage is None:
            sample = self.evaluation[0] if self.evaluation else None
            self._coverage = find_coverage(self.model, sample) or "unknown"
        return None if self._coverage == "unknown" else self._coverage

    @property
    def quantized(self) -> Counter[str]:
        """Op type -> how many were quantized."""
        return self.plan.quantized

    @property
    def skipped(self) -> Counter[tuple[str, str]]:
        """(op type, reason) -> how many were left float."""
        return self.plan.left_float

    @property
    def shrinkage(self) -> str:
        """The ratio of sizes, in words; Q/DQ nodes can outweigh the weights of a tiny model."""
        return show_ratio(self.float_size / max(self.size, 1), "smaller", "larger")

    @property
    def measured(self) -> str:
        """The output with scores of classes, or else the worst one, against float in a few words.

        Empty where nothing was measured.
        """
        scores = [output for output in self.outputs if output.agreement is not None]
        output = min(scores or self.outputs, key=lambda output: output.sqnr, default=None)
        if output is None:
            return ""
        if output.agreement is None or output.judged is None:
            return f"{output.sqnr:.1f} dB SQNR"
        agreement = f"{output.agreement:.1%}".replace("%", " %")
        return f"top-1 agreement {agreement}, {output.judged.worst.show_figure()}"

    @property
    def perplexity(self) -> Perplexity | None:
        """The perplexity of a decoder with a cache beside float's, on the tokens of its samples."""
        return None if self.judgement is None else self.judgement.perplexity

    @property
    def verdict(self) -> Verdict:
        """How good the model is: a sentence, and its level.

        That is good, fair, poor, slow (than the prepared float model), float or unknown.
        """
        sizes, purpose = (self.float_size, self.size), advised_purpose(self.plan.recipe)
        return judge_model(self.plan, self.outputs, sizes, self.clock, purpose, self.samples)

    def lines(
        self, next_step: str | None = None, target: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Return whether the model may be shipped, whether it is faster, and what to do next.

        `target` is what the model's target says of it, as `verify` summarizes it.
        """
        ship = may_ship(self.verdict.level, self.samples, target)
        return verdict_lines(ship, self.clock or self.untimed, next_step)

    def to_proto(self) -> onnx.ModelProto:
        """Return the model as a protobuf message (below 2 GB)."""
        return graph.put_back_maps(ir.to_proto(self.model))

    @check_arguments
    def save(self, path: str | Path, *, external_data: bool | None = None) -> None:
        """Write the model: all of it, or nothing."""
        graph.check_destination(path, source=self.source)
        graph.save_model(self.model, path, external_data=external_data)
        self.path = Path(path)
        self.size = graph.file_size(path)

    def to_pandas(self) -> Any:
        """Return what became of each node as a pandas DataFrame."""
        rows = [
            {"node": name, "op": node.op, "action": node.action, "reason": node.why}
            for name, node in self.plan.nodes.items()
        ]
        return data_frame(rows, columns=["node", "op", "action", "reason"])

    def sections(self, *, verbose: bool = False) -> list[Section]:
        """Return the errors of the outputs."""
        return [output_section(f"Against float on {self._measured_on()}", self.outputs)]

    def facts(self) -> list[tuple[str, str]]:
        """Return what was found: names, and what is to be said of each."""
        sizes = f"{show_bytes(self.float_size)} -> {show_bytes(self.size)}"
        facts = [("Size", f"{sizes} ({self.shrinkage})")]
        if self.data != "no data" and self.plan.recipe.mode != "cast":  # a cast reads no ranges
            facts.append(("Calibrated on", self.data))
        on = f"Against float ({self._measured_on()})"
        facts += [(on, comparison.describe()) for comparison in self.outputs]
        if self.coverage is not None:
            facts.append(("Integer kernels", self.coverage.describe()))
        few = [] if self.judgement is None else self.judgement.notes
        return facts + [("Note", note) for note in (*self.plan.notes, *few)]

    def summary(self) -> str:
        """Return what was done, in a few lines."""
        quantized, skipped = self.quantized, self.skipped
        total = len(self.plan.nodes)
        taken, left = self.plan.recipe.done_and_left
        lines = [
            f"Recipe {self.plan.recipe.name}: {quantized.total()} of {total} nodes {taken}, "
            f"{skipped.total()} {left}",
            *(f"{name}: {text}" for name, text in self.facts()),
            f"{taken.capitalize()}: "
            + ", ".join(f"{op} x{n}" for op, n in quantized.most_common()),
            *(
                f"{left.capitalize()}: {op} x{count} because {reason}"
                for (op, reason), count in skipped.most_common()
            ),
            f"Verdict: {self.verdict.sentence}",
            *self.lines(),
        ]
        return "\n".join(lines)

    def _measured_on(self) -> str:
        seen = "holdout" if self.samples_are_unseen else "calibration"
        return counted(self.samples, f"{seen} sample")

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        return {
            "recipe": self.plan.recipe.name,
            "nodes": len(self.plan.nodes),
            "quantized": dict(self.quantized),
            "skipped": [
                {"op": op, "reason": reason, "count": count}
                for (op, reason), count in self.skipped.most_common()
            ],
            **plain_fields(self, "data", "samples", "samples_are_unseen", "judgement", "coverage"),
            **plain_fields(self, "clock", float_bytes="float_size", bytes="size", output="path"),
            "outputs": [
                plain_fields(
                    output,
                    *("name", "cosine", "largest_error", "judged"),
                    **{"sqnr_db": "sqnr", "top1_agreement": "agreement"},
                )
                for output in self.outputs
            ],
            "verdict": self.verdict._asdict(),
            "lines": self.lines(),
            "notes": list(self.plan.notes),
        }


def advised_purpose(recipe: Recipe) -> str:
    """Return the purpose that a verdict advises by: where no other can be chosen, the last one."""
    return recipe.place.purpose if recipe.can_be_placed else "speed"
