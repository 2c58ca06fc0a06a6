"""Results of timing language models: prefill and decoding tokens per second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from bitwright.support import Section, Summarized, counted, data_frame, plain_fields
from bitwright.support.wording import show_bytes, show_ratio

Engine = Literal["onnxruntime", "onnxruntime-genai"]
"""What runs a model token by token: the runtime itself, or its library for language models."""


class Rate(NamedTuple):
    """Tokens in a second over several runs."""

    median: float
    low: float
    """10th percentile."""
    high: float
    """90th percentile."""

    @classmethod
    def of(cls, tokens: int, seconds: tuple[float, ...] | list[float]) -> Rate:
        """Return the rate of `tokens` over the seconds of each run."""
        rates = tokens / np.maximum(seconds, 1e-9)
        low, median, high = np.percentile(rates, (10, 50, 90))
        return cls(float(median), float(low), float(high))

    def describe(self) -> str:
        """Return the median, and the spread around it."""
        median, low, high = (f"{x:,.0f}" if x >= 100 else f"{x:.3g}" for x in self)
        return f"{median} ({low} to {high})"

    def to_dict(self) -> dict[str, float]:
        """Return the rate as plain data."""
        return self._asdict()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGeneration:
    """The figures of one language model.

    >>> figures = ModelGeneration(
    ...     name="m.onnx", size=100, prompt_tokens=128, new_tokens=64, prefill_seconds=(0.5, 0.5),
    ...     decode_seconds=(2.0, 2.0), open_seconds=0.1, peak_memory=None)
    >>> figures.prefill.median, figures.decode.median
    (256.0, 32.0)
    """

    name: str
    size: int
    """Bytes on disk, external data included."""
    prompt_tokens: int
    new_tokens: int
    prefill_seconds: tuple[float, ...]
    """Of each run: from the prompt to the logits of the first token."""
    decode_seconds: tuple[float, ...]
    """Of each run: all tokens behind the first."""
    open_seconds: float
    peak_memory: int | None
    """The most bytes that the model's process held; None where the system does not tell."""

    @property
    def prefill(self) -> Rate:
        """Tokens of the prompt in a second."""
        return Rate.of(self.prompt_tokens, self.prefill_seconds)

    @property
    def decode(self) -> Rate:
        """New tokens in a second."""
        return Rate.of(self.new_tokens, self.decode_seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {
            "model": self.name,
            "bytes": self.size,
            "runs": len(self.prefill_seconds),
            "prefill_tokens_per_second": self.prefill.to_dict(),
            "decode_tokens_per_second": self.decode.to_dict(),
            "open_seconds": self.open_seconds,
            "peak_memory_bytes": self.peak_memory,
        }


@dataclass(frozen=True, slots=True, repr=False)
class GenerationBenchmark(Summarized):
    """Language models side by side; the first is what the others are held against.

    >>> shared = dict(size=100, prompt_tokens=8, new_tokens=4, open_seconds=0.1, peak_memory=None)
    >>> slow = ModelGeneration(name="float.onnx", prefill_seconds=(1.0,), decode_seconds=(2.0,),
    ...     **shared)
    >>> fast = ModelGeneration(name="int4.onnx", prefill_seconds=(1.0,), decode_seconds=(0.5,),
    ...     **shared)
    >>> both = GenerationBenchmark((slow, fast), engine="onnxruntime", threads=1)
    >>> both.prefill_speedup(), both.decode_speedup()
    (1.0, 4.0)
    """

    models: tuple[ModelGeneration, ...]
    engine: Engine
    threads: int | None
    providers: tuple[str, ...] = ()
    """Empty where a folder names its own."""

    def prefill_speedup(self, index: int = 1) -> float:
        """Return how many times faster a model reads the prompt than the first."""
        return self.models[index].prefill.median / self.models[0].prefill.median

    def decode_speedup(self, index: int = 1) -> float:
        """Return how many times faster a model generates tokens than the first."""
        return self.models[index].decode.median / self.models[0].decode.median

    def shrinkage(self, index: int = 1) -> float:
        """Return how many times smaller a model is than the first."""
        return self.models[0].size / max(self.models[index].size, 1)

    @property
    def detail(self) -> str:
        """How it was measured, in a line."""
        first = self.models[0]
        threads = "all cores" if self.threads is None else counted(self.threads, "thread")
        return (
            f"median (and 10 to 90 % of) {len(first.prefill_seconds)} interleaved runs, "
            f"{first.prompt_tokens} tokens of prompt, then {first.new_tokens} one by one, "
            f"{self.engine}, {', '.join([threads, *self.providers])}, random tokens"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        rows = [self._row(index) for index in range(len(self.models))]
        tokens = plain_fields(self.models[0], "prompt_tokens", "new_tokens")
        return plain_fields(self, "engine", "threads", "providers") | tokens | {"models": rows}

    def _row(self, index: int) -> dict[str, Any]:
        row = self.models[index].to_dict()
        if index:
            row["prefill_speedup"] = self.prefill_speedup(index)
            row["decode_speedup"] = self.decode_speedup(index)
            row["shrinkage"] = self.shrinkage(index)
        return row

    def to_pandas(self) -> Any:
        """Return the figures as a table with a row for each model; needs pandas."""
        rates = ("prefill_tokens_per_second", "decode_tokens_per_second")
        rows = self.to_dict()["models"]
        rows = [row | {name: row[name]["median"] for name in rates} for row in rows]
        return data_frame(rows).set_index("model")

    def summary(self) -> str:
        """Return the tokens in a second of each model, in a line each."""
        lines = [
            f"{m.name}: {m.prefill.describe()} tokens/s of prompt, {m.decode.describe()} generated"
            for m in self.models
        ]
        return "\n".join([*lines, f"Measured: {self.detail}"])

    def sections(self, *, verbose: bool = False) -> list[Section]:
        """Return the figures, and those beside the first."""
        columns = ("model", "prefill tokens/s", "decoding tokens/s", "size", "memory", "runs")
        figures = [
            (
                model.name,
                model.prefill.describe(),
                model.decode.describe(),
                show_bytes(model.size),
                "-" if model.peak_memory is None else show_bytes(model.peak_memory),
                str(len(model.prefill_seconds)),
            )
            for model in self.models
        ]
        ratios = [
            (
                model.name,
                show_ratio(self.prefill_speedup(index), "faster", "slower"),
                show_ratio(self.decode_speedup(index), "faster", "slower"),
                show_ratio(self.shrinkage(index), "smaller", "larger"),
            )
            for index, model in enumerate(self.models)
            if index
        ]
        against = f"Against {self.models[0].name}"
        return [
            ("Tokens in a second", columns, figures),
            (against, ("model", "prefill", "decoding", "size"), ratios),
        ]
