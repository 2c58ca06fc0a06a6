"""One measurement of `calibration.py`: WHO MODEL METHOD SAMPLES FOLDER."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from measure import peak_memory, report


def samples(name: str, count: int) -> Iterator[dict[str, np.ndarray]]:
    """Make samples one at a time: the data itself must not count as memory of the tool."""
    if name == "recognizer":
        from text_lines import make_lines

        for seed in range(count):
            yield {"x": make_lines(1, seed)[0].array}
    else:
        from graphs import make_images

        for seed in range(count):
            yield {"image": make_images(1, seed)}


def stored_samples(name: str, count: int, folder: Path) -> list[Path]:
    """Write the samples once, so that no measurement pays for drawing them."""
    place = folder / f"{name}-samples"
    place.mkdir(exist_ok=True)
    paths = [place / f"{index:04d}.npz" for index in range(count)]
    if not paths[-1].exists():
        for path, sample in zip(paths, samples(name, count), strict=True):
            np.savez(path, **sample)
    return paths


def read(paths: list[Path]) -> Iterator[dict[str, np.ndarray]]:
    for path in paths:
        with np.load(path) as found:
            yield {key: found[key] for key in found.files}


def run_float(model: Path, paths: list[Path]) -> None:
    """Plain inference at the runtime's defaults; the first run is not counted."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    for sample in read(paths[:1]):
        session.run(None, sample)
    start = time.perf_counter()
    for sample in read(paths):
        session.run(None, sample)
    report(time.perf_counter() - start)


def run_ours(model: Path, method: str, paths: list[Path]) -> None:
    """From the prepared model and the samples to the finished plan, then to the file."""
    from bitwright import load_recipe
    from bitwright.decide.layout.static import lay_out
    from bitwright.decide.ranges.methods import choose_range
    from bitwright.jobs.calibration import Calibration, detail_for
    from bitwright.jobs.opening import open_model
    from bitwright.jobs.output import Planned, emit_model
    from bitwright.jobs.static import plan_static
    from bitwright.observe import observe

    recipe = load_recipe({"base": "int8-per-channel", "ranges": {"method": method}})
    begin = time.perf_counter()
    prepared = open_model(model, recipe)
    layout = lay_out(prepared.model, recipe)
    # Loading and compiling happen once a machine and once a model; they are in `total`.
    observe(prepared.model, layout.observed, read(paths[:1]), detail=detail_for(recipe, keep=False))
    opened = time.perf_counter()
    calibration = Calibration(data=read(paths), holdout=False, progress=False)
    decided = plan_static(prepared, calibration)
    planned = time.perf_counter()
    emit_model(decided.prepared, Planned(decided.plan))
    total = time.perf_counter() - begin
    peak = peak_memory()
    # What another method would cost, once the pass is done.
    sketches = observe(prepared.model, layout.observed, read(paths[:2])).sketches
    start = time.perf_counter()
    for entry in layout.entries.values():
        if entry.needs_data:
            choose_range(sketches[entry.name], recipe.ranges, entry.qtype)
    report(planned - opened, peak=peak, total=total, choose=time.perf_counter() - start)


def run_peer(model: Path, method: str, paths: list[Path], folder: Path) -> None:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    logging.disable(logging.CRITICAL)

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.samples = read(paths)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.samples, None)

    start = time.perf_counter()
    quantize_static(
        str(model),
        str(folder / "peer.onnx"),
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=getattr(CalibrationMethod, method),
    )
    report(time.perf_counter() - start)


def main() -> None:
    who, name, method, count, folder = sys.argv[1:]
    place = Path(folder)
    model = place / f"{name}.onnx"
    paths = stored_samples(name, int(count), place)
    if who == "float":
        run_float(model, paths)
    elif who == "ours":
        run_ours(model, method, paths)
    else:
        run_peer(place / f"{name}-for-peer.onnx", method, paths, place)


if __name__ == "__main__":
    main()
