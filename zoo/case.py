"""A model on disk with its samples: what every verb is tried on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from zoo.network import SAMPLES, Samples

DRAWING = frozenset(
    "RandomNormal RandomUniform RandomNormalLike RandomUniformLike Multinomial Bernoulli".split()
)
# Operators that choose among values: a small error changes which are chosen, and how many.
SELECTING = DRAWING | frozenset(
    "NonMaxSuppression NonZero TopK ArgMax ArgMin Unique Compress Dropout".split()
)
Outputs = dict[str, Any]
JUDGED = 2


@dataclass
class Case:
    """An exported model and its samples.

    Results are judged by samples that they were calibrated with: this is about graphs and number
    formats, and eight random samples say nothing about ranges of others.
    """

    path: Path
    calibration: Samples
    digests: dict[str, str] = field(default_factory=dict)
    """What verbs made of it, refusals too."""

    @property
    def judged(self) -> Samples:
        """The samples that results are judged by."""
        return self.calibration[:JUDGED]

    @cached_property
    def session(self) -> onnxruntime.InferenceSession:
        """The float model in ONNX Runtime."""
        return open_session(self.path)

    @cached_property
    def expected(self) -> list[Outputs]:
        """What the float model gives on the samples to judge by."""
        return [run(self.session, sample) for sample in self.judged]

    @cached_property
    def _float_model(self) -> onnx.ModelProto:
        return onnx.load(self.path, load_external_data=False)

    @cached_property
    def declared(self) -> dict[str, list[int | str | None]]:
        """The sizes of inputs and outputs that the file declares; Paddle's open ones are -1."""
        graph = self._float_model.graph
        return {
            value.name: [
                dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param
                for dim in value.type.tensor_type.shape.dim
            ]
            for value in (*graph.input, *graph.output)
        }

    @cached_property
    def selected_outputs(self) -> set[str]:
        """The outputs behind an operator that chooses, which no error can be given for."""
        return find_selected(self._float_model)

    @cached_property
    def draws(self) -> bool:
        """Whether the model draws numbers at random, with no seed."""
        return any(
            node.op_type in DRAWING and all(a.name != "seed" for a in node.attribute)
            for node in self._float_model.graph.node
        )

    @cached_property
    def is_finite(self) -> bool:
        """Whether the float model's outputs are numbers at all."""
        return all(
            np.isfinite(array).all()
            for outputs in self.expected
            for array in outputs.values()
            if isinstance(array, np.ndarray) and array.dtype.kind == "f"
        )

    @property
    def is_repeatable(self) -> bool:
        """Whether the float model gives the same twice, but for what it draws at random.

        A sliding cache that is given more than it holds comes out with memory that nobody wrote.
        """
        again = run(self.session, self.judged[0])
        return all(
            name in self.selected_outputs or np.array_equal(array, again[name], equal_nan=True)
            for name, array in self.expected[0].items()
            if isinstance(array, np.ndarray) and array.dtype.kind == "f"
        )


def digest_of(content: bytes) -> str:
    """Return what tells a file from others."""
    return sha256(content).hexdigest()[:16]


def open_session(
    path: Path, entries: Mapping[str, str] | None = None, *, optimized: bool = True
) -> onnxruntime.InferenceSession:
    """Load a model as users do: on the CPU, at the default level unless not `optimized`."""
    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, sample: Mapping[str, np.ndarray]) -> Outputs:
    """Return a model's outputs by name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(sample)), strict=True))


def find_selected(model: onnx.ModelProto) -> set[str]:
    """Return the outputs that depend on what a selecting operator chose."""
    reached: set[str] = set()
    for node in model.graph.node:
        inner = [n.op_type for a in node.attribute for n in a.g.node]
        if SELECTING & {node.op_type, *inner} or reached & {*node.input}:
            reached.update(node.output)
    return {output.name for output in model.graph.output if output.name in reached}


def sqnr(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return the signal-to-noise ratio in dB; what is off by rounding of floats is infinite."""
    a, b = (np.asarray(x, np.float64) for x in (expected, actual))
    noise, signal = float(np.sum((a - b) ** 2)), float(np.sum(a * a))
    if noise <= signal * 1e-20 or noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def save_samples(path: Path, samples: Samples) -> None:
    """Write samples beside their model."""
    np.savez(path, **{f"{i}/{k}": v for i, s in enumerate(samples) for k, v in s.items()})


def load_case(path: Path) -> Case:
    """Read a model's samples again."""
    samples: dict[int, dict[str, np.ndarray]] = {}
    with np.load(path.with_suffix(".npz")) as file:
        for key in file.files:
            index, _, name = key.partition("/")
            samples.setdefault(int(index), {})[name] = file[key]
    # A model without inputs leaves nothing to store.
    return Case(path, [samples[i] for i in sorted(samples)] or [{}] * SAMPLES)
