"""One method on one language model: llm_worker.py METHOD MODEL OUTPUT SAMPLES BLOCK_SIZE DEVICE."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from measure import report

_SIGNED = {"fine_tune": {"method": "signround"}}
_EVEN = {"mixed": None, "head_bits": 8}  # all of the same bits, but the head

# Recipes that have no name of their own: the one that they begin with, and what they change.
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "int4-rtn-weighted": ("int4-rtn", {"weights": {"rounding": {"weighted": True}}}),
    "int4-hqq-float": (
        "int4-hqq",
        {"weights": {"rounding": {"method": "hqq", "float_zero_points": True}}},
    ),
    "int4-alike": ("int4", {"weights": {"mixed": None}}),
    "int4-even": ("int4", {"weights": _EVEN}),
    "int4-awq-gptq": (
        "int4",
        {"weights": {"rounding": {"method": "gptq"}, "refine": 2, "awq": {}}},
    ),
    "int2": ("int4", {"weights": {"bits": 2, **_EVEN}}),
    "int3": ("int4", {"weights": {"bits": 3, **_EVEN}}),
    "int2-signround": ("int4", {"weights": {"bits": 2, **_EVEN}, **_SIGNED}),
    "int3-signround": ("int4", {"weights": {"bits": 3, **_EVEN}, **_SIGNED}),
    "int4-signround": ("int4", _SIGNED),
}


def run_ours(
    method: str, model: str, output: str, rows: np.ndarray, block: int, device: str
) -> None:
    import msgspec

    import bitwright

    base, changes = VARIANTS.get(method, (method, {}))
    recipe = bitwright.load_recipe({"base": base, **changes})
    weights = msgspec.structs.replace(recipe.weights, block_size=block, accuracy_level=0)
    data = [{"input_ids": row[None]} for row in rows]
    bitwright.quantize(
        model,
        output,
        data=data if weights.needs_data else None,
        recipe=recipe.replace(weights=weights),
        device=device,
        holdout=False,
        external_data=True,
        progress=False,
    )


class _Reader:
    """The peers' calibration reader."""

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = iter(rows)

    def get_next(self) -> dict[str, np.ndarray] | None:
        row = next(self._rows, None)
        return None if row is None else {"input_ids": row[None]}

    def __iter__(self) -> _Reader:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        found = self.get_next()
        if found is None:
            raise StopIteration
        return found


def run_onnxruntime(method: str, model: str, output: str, rows: np.ndarray, block: int) -> None:
    import onnx
    from onnxruntime.quantization import matmul_nbits_quantizer as peer

    loaded = onnx.load(model)
    configs = {
        "ort-rtn": lambda: peer.RTNWeightOnlyQuantConfig(),
        "ort-k-quant": lambda: peer.KQuantWeightOnlyQuantConfig(),
        "ort-hqq": lambda: peer.HQQWeightOnlyQuantConfig(block_size=block),
        "ort-gptq": lambda: peer.GPTQWeightOnlyQuantConfig(_Reader(rows)),
    }
    make = configs.get(method)
    quantizer = peer.MatMulNBitsQuantizer(
        loaded,
        block_size=block,
        is_symmetric=method == "ort-symmetric",
        accuracy_level=0,
        algo_config=None if make is None else make(),
    )
    quantizer.process()
    quantizer.model.save_model_to_file(output, use_external_data_format=True)


class _Loader:
    """neural-compressor's: (inputs, label) pairs, and a batch size."""

    batch_size = 1

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = rows

    def __iter__(self):
        return (({"input_ids": row[None]}, 0) for row in self._rows)


def run_intel(method: str, model: str, output: str, rows: np.ndarray, block: int) -> None:
    import onnx
    from neural_compressor.adaptor.ox_utils import weight_only as peer

    quantize = getattr(
        peer, {"inc-rtn": "rtn", "inc-awq": "awq", "inc-gptq": "gptq"}[method] + "_quantize"
    )
    options = {} if method == "inc-rtn" else {"dataloader": _Loader(rows), "n_samples": len(rows)}
    found = quantize(onnx.load(model), num_bits=4, group_size=block, scheme="asym", **options)
    onnx.save_model(
        found.model, output, save_as_external_data=True, location=f"{Path(output).name}.data"
    )


def main() -> None:
    method, model, output, samples, block, device = sys.argv[1:]
    rows = np.load(samples)
    start = time.perf_counter()
    family = method.partition("-")[0]
    peer = {"ort": run_onnxruntime, "inc": run_intel}.get(family)
    if peer is None:
        run_ours(method, model, output, rows, int(block), device)
    else:
        peer(method, model, output, rows, int(block))
    report(time.perf_counter() - start)


if __name__ == "__main__":
    main()
