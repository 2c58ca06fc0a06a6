"""Transformers in 8 bits by the number of tokens: time beside the prepared float model, and error.

    python benchmarks/tokens.py sentences smollm --threads 1
    python benchmarks/tokens.py encoder FILE.onnx      seeded weights: times count, errors do not

`smollm` needs what smollm.py says, `sentences` what accuracy_tasks.py names.

Forms: `token` is `--dynamic` (one scale for each row of an activation), `tensor` the same with one
scale for each activation, `onnxruntime` its own quantize_dynamic per channel, `static` the default
with data, `int4` is int4-rtn. All run in turns. The error is 1 - cosine of each sample's last
output and, for language models, the perplexity over float's on a text that nothing was built from.
`batch` is how far a sample's answer in a batch of 8 is from its answer alone, over its largest
number.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from measure import print_table

import bitwright
from bitwright.assess.clock import time_models
from bitwright.graph import load_model, save_model
from bitwright.jobs.timing import prepare_yardstick

Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class Subject:
    """A float model, and what it is fed with."""

    path: Path
    feeds: Callable[[int, int], Feeds]
    """So many samples of so many tokens."""
    samples: list[Feeds]
    """Real ones, which nothing is built from."""
    calibration: list[Feeds]
    text: bool = False
    """Whether it gives the logits of a language model."""


def sentences(folder: Path) -> Subject:
    import onnx
    from accuracy_tasks import embed_sentences

    task = embed_sentences(240)
    path = folder / "sentences.onnx"
    onnx.save(task.model, path)

    def feeds(batch: int, tokens: int) -> Feeds:
        ids = np.random.default_rng(0).integers(1000, 20000, (batch, tokens))
        known = {"attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        return {given.name: known.get(given.name, ids) for given in task.model.graph.input}

    return Subject(path, feeds, task.evaluation[:200], task.calibration[:32])


def smollm(folder: Path) -> Subject:
    import smollm as source

    path = source.build_model(folder / "smollm.onnx")
    text = Path(__file__).parent.parent.joinpath("LICENSE").read_text(encoding="utf-8")
    ids = np.array(source.load_tokenizer().encode(text).ids, np.int64)
    windows = [{"input_ids": row[None]} for row in ids[: len(ids) // 256 * 256].reshape(-1, 256)]

    def feeds(batch: int, tokens: int) -> Feeds:
        return {"input_ids": np.random.default_rng(0).integers(100, 40000, (batch, tokens))}

    return Subject(path, feeds, windows, [], text=True)


def encoder(folder: Path) -> Subject:
    from dynamic import WIDTH, make_encoder

    path = folder / "encoder.onnx"
    make_encoder(path)
    return of_file(path, WIDTH)


def of_file(path: Path, width: int | None = None) -> Subject:
    """Return a model with random inputs; sizes that are open are tokens, the first one samples."""
    specs = load_model(path).graph.inputs

    def feeds(batch: int, tokens: int) -> Feeds:
        random, found = np.random.default_rng(0), {}
        for spec in specs:
            sizes = [
                size if isinstance(size, int) else tokens if index else batch
                for index, size in enumerate(spec.shape or ())
            ]
            floats = spec.dtype is not None and spec.dtype.is_floating_point()
            found[spec.name or ""] = (
                random.standard_normal(sizes, np.float32)
                if floats
                else random.integers(0, 100, sizes)
            )
        return found

    return Subject(path, feeds, [feeds(1, 24) for _ in range(4)], [feeds(1, 24) for _ in range(4)])


SUBJECTS = {"sentences": sentences, "smollm": smollm, "encoder": encoder}


def write(form: str, subject: Subject, output: Path) -> None:
    """Write a form of a model."""
    if form == "onnxruntime":
        from onnxruntime.quantization import quantize_dynamic

        quantize_dynamic(subject.path, output, per_channel=True, use_external_data_format=True)
        return
    if form == "static":
        bitwright.quantize(
            subject.path, output, data=subject.calibration, external_data=True, timing=False
        )
        return
    recipes: dict[str, Any] = {
        "token": "int8-dynamic",
        "tensor": {"base": "int8-dynamic", "dynamic_scale": "tensor"},
        "int4": "int4-rtn",
    }
    bitwright.quantize(subject.path, output, recipe=recipes[form], external_data=True)


class Runner:
    """Runs a file."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(path, options)
        found = [o.name for o in self._session.get_outputs() if "float" in o.type]
        self._output = found[-1]

    def __call__(self, feeds: Feeds) -> np.ndarray:
        [output] = self._session.run([self._output], feeds)
        return np.asarray(output, np.float64)


def cosine_error(ones: Iterable[np.ndarray], others: Iterable[np.ndarray]) -> float:
    errors = []
    for one, other in zip(ones, others, strict=True):
        a, b = one.ravel(), other.ravel()
        errors.append(1 - a @ b / np.sqrt((a @ a) * (b @ b)))
    return float(np.mean(errors))


def surprise(logits: Iterable[np.ndarray], samples: Iterable[Feeds]) -> float:
    """Return the mean surprise about the next token, in nats."""
    found = []
    for output, sample in zip(logits, samples, strict=True):
        ids, rows = next(iter(sample.values()))[0, 1:], output[0, :-1]
        rows = rows - rows.max(axis=-1, keepdims=True)
        chances = rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))
        found.append(-chances[np.arange(len(ids)), ids])
    return float(np.mean(found))


def batch_error(run: Runner, feeds: Feeds) -> float:
    together = run(feeds)
    alone = [run({k: v[i : i + 1] for k, v in feeds.items()}) for i in range(len(together))]
    return float(np.abs(np.concatenate(alone) - together).max() / np.abs(together).max())


def measure(name: str, subject: Subject, options: argparse.Namespace, folder: Path) -> None:
    prepared = prepare_yardstick(subject.path)
    if prepared is None:
        raise SystemExit(f"{subject.path} cannot be prepared")
    files = {"float": folder / f"{name}-prepared.onnx"}
    save_model(prepared.reference, files["float"], external_data=True)
    for form in options.forms:
        if form == "static" and not subject.calibration:
            continue
        files[form] = folder / f"{name}-{form}.onnx"
        write(form, subject, files[form])
    exact = [Runner(files["float"])(sample) for sample in subject.samples]
    usual = surprise(exact, subject.samples) if subject.text else 0.0
    times: dict[str, list[str]] = {form: [] for form in files}
    for tokens in options.tokens:
        feeds = subject.feeds(1, tokens)
        models = [load_model(path) for path in files.values()]
        clocks = time_models(
            models,
            [feeds] * len(models),
            threads=options.threads or None,
            budget=options.seconds,
            however_long=True,
        )
        assert clocks is not None
        times["float"].append(f"{clocks[0].float_ms:.2f} ms")
        for form, clock in zip([*files][1:], clocks, strict=True):
            times[form].append(f"{clock.ratio:.2f} ({clock.low:.2f}-{clock.high:.2f})")
    rows = []
    for form, path in files.items():
        run = Runner(path)
        found = [run(sample) for sample in subject.samples]
        loss = f"{np.exp(surprise(found, subject.samples) - usual):.3f}" if subject.text else ""
        size = sum(f.stat().st_size for f in folder.glob(f"{path.name}*")) / 1e6
        error = f"{cosine_error(exact, found):.1e}"
        rows.append((f"{name}, {form}", *times[form], error, loss,
                     f"{batch_error(run, subject.feeds(8, 24)):.0e}", f"{size:.1f}"))  # fmt: skip
    header = ("form", *(f"{n} tokens" for n in options.tokens), "1 - cos", "perplexity")
    print_table((*header, "batch", "MB"), rows)
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=["sentences", "smollm"])
    parser.add_argument("--forms", nargs="*", default=["token", "tensor", "onnxruntime", "static"])
    parser.add_argument("--tokens", nargs="*", type=int, default=[1, 16, 128, 512])
    parser.add_argument("--threads", type=int, default=1, help="0: all cores")
    parser.add_argument("--seconds", type=float, default=10, help="to time each row with")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="bitwright-bench-") as name:
        folder = Path(name)
        for model in options.models:
            make = SUBJECTS.get(model)
            subject = of_file(Path(model)) if make is None else make(folder)
            measure(Path(model).stem, subject, options, folder)


if __name__ == "__main__":
    main()
