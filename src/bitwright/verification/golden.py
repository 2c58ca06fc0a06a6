"""Golden answers: what a file gave where it was made, kept in it, and asked for again elsewhere."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx.helper import set_model_props

from bitwright.errors import ModelError
from bitwright.graph import fingerprint, load_model
from bitwright.run import Session, open_plainly
from bitwright.support import Array, to_bytes, write_file
from bitwright.verification.findings import Finding, Verification

GOLDEN = "bitwright.golden"
"""The metadata that holds them."""
_MAX_BYTES, _MAX_UNPACKED = 1_000_000, 1 << 26
_SLACK = 4
"""Answers may differ by so many times what they differ by without the runtime's optimizations."""
_EXACT = 1e-6
"""And in any case by so much: the last bits of sums in float32."""


def keep_golden(path: Path, samples: Sequence[Mapping[str, Array]]) -> int:
    """Store samples and the answers to them in a model's file; return how many fit into 1 MB."""
    model = load_model(path)
    session, plain = Session(path), open_plainly(path)
    arrays: dict[str, Array] = {}
    rounding: dict[str, float] = {}
    facts = {"weights": fingerprint(model, weights=True), "runtime": ort.__version__}
    for count, sample in enumerate(samples):
        answers, others = session.run(sample), plain.run(sample)
        for name, answer in answers.items():
            apart = _distance(answer, others[name])
            rounding[name] = max(apart, rounding.get(name, 0.0))
        arrays |= {f"{count}<{name}": array for name, array in sample.items()}
        arrays |= {f"{count}>{name}": array for name, array in answers.items()}
        content = to_bytes(arrays, {**facts, "rounding": json.dumps(rounding)})
        text = base64.b64encode(zlib.compress(content, 9)).decode()
        if len(text) > _MAX_BYTES:
            return count
        proto = onnx.load(path, load_external_data=False)
        known = {entry.key: entry.value for entry in proto.metadata_props}
        set_model_props(proto, {**known, GOLDEN: text})
        write_file(path, proto.SerializeToString())
    return len(samples)


def check_golden(model: ir.Model, providers: Sequence[str] | None = None) -> Verification:
    """Ask a model again what it answered where it was made, on this machine.

    Answers that are not the same are a warning where they differ as roundings do, else an error.
    """
    arrays, facts = _read(model)
    findings = []
    if facts["weights"] != fingerprint(model, weights=True):
        message = "the file was changed after its golden answers were stored"
        findings.append(Finding("golden", "", message, consequence="wrong"))
    rounding = json.loads(facts["rounding"])
    session = Session(model, providers=providers)
    apart: dict[str, float] = {}
    for sample, answers in _samples(arrays):
        for name, array in session.run(sample).items():
            apart[name] = max(_distance(answers[name], array), apart.get(name, 0.0))
    for name, share in apart.items():
        near = share <= max(_SLACK * rounding.get(name, 0.0), _EXACT)
        message = f"its answers {'differ as roundings do' if near else 'are different'}"
        message += f" from those of onnxruntime {facts['runtime']} where it was made"
        values = {"difference": f"{100 * share:.3g} %"}
        if share > 0:
            level: Any = "warning" if near else "error"
            wrong: Any = None if near else "wrong"
            findings.append(Finding("golden", name, message, values, level, consequence=wrong))
    where = f"this machine (onnxruntime {ort.__version__}, {session.runtime.get_providers()[0]})"
    return Verification(where, ("golden",), tuple(findings))


def _read(model: ir.Model) -> tuple[dict[str, Array], dict[str, str]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    text = model.metadata_props.get(GOLDEN)
    if text is None:
        raise ModelError(
            "the model has no golden answers; `bitwright publish --golden N` stores them in it."
        )
    try:
        content = zlib.decompressobj().decompress(base64.b64decode(text), _MAX_UNPACKED)
        length = int.from_bytes(content[:8], "little")
        return load(content), json.loads(content[8 : 8 + length])["__metadata__"]
    except (ValueError, KeyError, zlib.error, SafetensorError) as error:
        raise ModelError(
            "the golden answers in the model are damaged; publish it again."
        ) from error


def _samples(arrays: Mapping[str, Array]) -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
    for number in range(len({name.partition("<")[0] for name in arrays if "<" in name})):
        yield tuple(  # type: ignore[misc]
            {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}
            for start in (f"{number}<", f"{number}>")
        )


def _distance(one: Array, other: Array) -> float:
    """Return how far answers are apart, as a share of their size; of whole numbers, of them all."""
    if one.shape != other.shape:
        return 1.0
    if one.dtype.kind != "f":
        return float(np.mean(one != other)) if one.size else 0.0
    wide, apart = one.astype(np.float64), one.astype(np.float64) - other
    if not np.isfinite(apart).all():
        return 0.0 if np.array_equal(one, other, equal_nan=True) else 1.0
    size = float(np.sqrt(np.mean(wide**2))) if one.size else 0.0
    return float(np.sqrt(np.mean(apart**2))) / (size or 1.0) if one.size else 0.0
