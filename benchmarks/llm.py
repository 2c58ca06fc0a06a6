"""A real language model in 4 bits, ours and the peers': perplexity, divergence, time and memory.

SmolLM2-135M (see smollm.py, which also says what to install) is quantized by each method in a
process of its own. Perplexity over that of float, the KL divergence from float and the part of
tokens with the same answer are measured on texts that no method has seen, each of another kind than
the one to calibrate on: their mean, and the smallest and the largest. Plain texts are in Debian's
`jargon-text` (calibration), `debian-history`, `debian-faq`, `developers-reference`, `fortunes` and
`perl-doc` (test); `apt-get download` and `dpkg -x` get them without installing anything.

    python benchmarks/llm.py --calibration jargon.txt.gz --test history.txt.gz faq.txt.gz ...
    python benchmarks/llm.py ... --methods int4 int4-rtn ort-default --block-size 128
    python benchmarks/llm.py ... --neural-compressor venv/bin/python      the peer's interpreter

A method takes one to ten minutes on two cores, its evaluation one more.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import smollm
from measure import HERE, print_table

LENGTH = 512

OURS = (
    "int4-rtn",
    "int4-rtn-weighted",
    "int4-hqq",
    "int4-awq",
    "int4-gptq",
    "int4",
    "int4-mixed",
    "int4-k",
)
MORE = (
    "int4-alike",  # all weights in 4 bits, the head too
    "int4-even",  # the same with a head of 8 bits, as `int4` was before it mixed bits
    "int4-awq-gptq",  # what `int4` does, behind AWQ
    "int4-hqq-float",  # zero points in float
    "int2",  # what `int4` does, with fewer bits
    "int3",
    "int2-signround",  # and signed steps behind it
    "int3-signround",
    "int4-signround",
)
PEERS = ("ort-default", "ort-symmetric", "ort-k-quant", "ort-rtn", "ort-hqq", "ort-gptq")
INTEL = ("inc-rtn", "inc-awq", "inc-gptq")


def read_tokens(tokenizer: object, paths: list[Path]) -> np.ndarray:
    """Return the tokens of plain texts; drawings and bytes of other alphabets are left out."""
    found = []
    for path in paths:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = re.sub(r"[^\x20-\x7e\s]+", " ", data.decode("utf-8", "replace"))
        found.append(tokenizer.encode(" ".join(text.split())).ids)  # type: ignore[attr-defined]
    return np.concatenate([np.asarray(ids, np.int64) for ids in found])


def windows(tokens: np.ndarray, count: int) -> np.ndarray:
    """Return windows spread evenly over the text."""
    whole = len(tokens) // LENGTH
    if whole < count:
        raise SystemExit(f"the text has {whole} windows of {LENGTH} tokens, {count} are needed")
    rows = tokens[: whole * LENGTH].reshape(whole, LENGTH)
    return rows[np.linspace(0, whole - 1, count).astype(int)]


class Judge:
    """What a model loses on texts, beside the float model's own distributions."""

    def __init__(self, model: Path, texts: dict[str, np.ndarray]) -> None:
        self._texts = texts
        self._float: dict[str, list[np.ndarray]] = {name: [] for name in texts}
        self.perplexities = {name: self._measure(model, name)[0] for name in texts}

    def __call__(self, model: Path) -> list[tuple[float, float, float]]:
        """Return for each text perplexity over float, divergence and the part of same answers."""
        found = []
        for name, perplexity in self.perplexities.items():
            ours, divergence, same = self._measure(model, name)
            found.append((ours / perplexity, divergence, same))
        return found

    def _measure(self, path: Path, name: str) -> tuple[float, float, float]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # Weights are compared, not the rounding of inputs that fused pairs would add.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        session = onnxruntime.InferenceSession(path, options)
        rows, kept = self._texts[name], self._float[name]
        first = not kept
        loss = divergence = same = 0.0
        for index, row in enumerate(rows):
            logits = session.run(None, {"input_ids": row[None]})[0][0]
            logits = logits - logits.max(axis=1, keepdims=True)
            chances = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            loss -= float(chances[np.arange(LENGTH - 1), row[1:]].sum(dtype=np.float64))
            if first:
                kept.append(chances.astype(np.float16))
            else:
                wanted = kept[index].astype(np.float32)
                divergence += float((np.exp(wanted) * (wanted - chances)).sum(dtype=np.float64))
                same += float((wanted.argmax(axis=1) == chances.argmax(axis=1)).mean())
        tokens = len(rows) * (LENGTH - 1)
        return float(np.exp(loss / tokens)), divergence / len(rows) / LENGTH, same / len(rows)


def spread(values: list[float], form: str) -> str:
    """Return the mean, and the smallest and largest."""
    if len(values) == 1:
        return format(values[0], form)
    low, high = (format(end, form) for end in (min(values), max(values)))
    return f"{sum(values) / len(values):{form}} ({low} to {high})"


def quantize_apart(
    method: str, files: tuple[Path, Path, Path], block_size: int, device: str, python: str
) -> dict[str, float] | str:
    """Quantize in a process of its own; the files are the model, the output and the samples."""
    command = [python, str(HERE / "llm_worker.py"), method, *map(str, files)]
    done = subprocess.run(
        [*command, str(block_size), device],
        capture_output=True,
        text=True,
        check=False,
        timeout=7200,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return lines[-1][:120] if lines else f"exit code {done.returncode}"
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def size_of(model: Path) -> float:
    files = [model, *model.parent.glob(f"{model.name}.data")]
    return sum(file.stat().st_size for file in files) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calibration", type=Path, nargs="+", required=True)
    parser.add_argument("--test", type=Path, nargs="+", required=True)
    parser.add_argument("--methods", nargs="+", metavar="NAME", default=[*OURS, *PEERS[:3]])
    parser.add_argument("--samples", type=int, default=32, help=f"windows of {LENGTH} tokens")
    parser.add_argument("--windows", type=int, default=12, help="of each test text")
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--device", default="cpu", help="where our methods compute")
    parser.add_argument("--layers", type=int, help="only the first layers, to try things out")
    parser.add_argument("--model", type=Path, help="where the float model is kept")
    parser.add_argument("--neural-compressor", metavar="PYTHON", help="an interpreter that has it")
    options = parser.parse_args()
    known = (*OURS, *MORE, *PEERS, *INTEL)
    unknown = set(options.methods) - {*known}
    if unknown:
        raise SystemExit(f"unknown method {unknown.pop()!r}; known: {known}")
    tokenizer = smollm.load_tokenizer()
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory(prefix="bitwright-bench-") as name:
        folder = Path(name)
        model = smollm.build_model(options.model or folder / "float.onnx", layers=options.layers)
        samples = folder / "samples.npy"
        np.save(samples, windows(read_tokens(tokenizer, options.calibration), options.samples))
        texts = {
            str(t): windows(read_tokens(tokenizer, [t]), options.windows) for t in options.test
        }
        judge = Judge(model, texts)
        size = f"{size_of(model):.0f}"
        rows.append(("float", "1", "0", "1", "", "", size))
        for method in options.methods:
            output = folder / f"{method}.onnx"
            python = options.neural_compressor if method in INTEL else sys.executable
            if python is None:
                continue
            files = (model, output, samples)
            found = quantize_apart(method, files, options.block_size, options.device, python)
            if isinstance(found, str):
                rows.append((method, found, "", "", "", "", ""))
                continue
            perplexity, divergence, same = (list(each) for each in zip(*judge(output), strict=True))
            rows.append(
                (
                    method,
                    spread(perplexity, ".3f"),
                    spread(divergence, ".3f"),
                    spread(same, ".3f"),
                    f"{found['seconds']:.0f}",
                    f"{found['peak']:.0f}",
                    f"{size_of(output):.0f}",
                )
            )
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
            for file in folder.glob(f"{method}.onnx*"):
                file.unlink()
    names = ("method", "perplexity over float", "KL to float", "same answer", "seconds", "peak MB")
    print_table((*names, "size MB"), rows)


if __name__ == "__main__":
    main()
