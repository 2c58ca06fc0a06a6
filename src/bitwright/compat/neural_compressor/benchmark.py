"""`neural_compressor.benchmark`: how fast a model runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bitwright.api import bench
from bitwright.compat.neural_compressor.config import BenchmarkConfig
from bitwright.compat.neural_compressor.inputs import prepare_inputs, source_of
from bitwright.support.wording import warn_user


def fit(
    model: Any,
    conf: BenchmarkConfig,
    b_dataloader: Any = None,
    b_func: Callable[[Any], Any] | None = None,
) -> Any:
    """Time a model on a loader's batches, or on random ones; print the figures and return them.

    A function is called with the model instead, and has its own figures.

    >>> import bitwright
    >>> path = bitwright.load_demo().model_path
    >>> figures = fit(path, BenchmarkConfig(iteration=3))  # doctest: +ELLIPSIS
    Latency: ... ms
    Throughput: ... samples/sec
    >>> len(figures.times)
    3
    """
    if b_func is not None:
        return b_func(source_of(model))
    if conf.num_of_instance != 1:
        warn_user("num_of_instance is ignored: one process runs, with cores_per_instance threads.")
    data = b_dataloader
    if data is not None:
        data, _ = prepare_inputs(model, -1, b_dataloader, ["CPUExecutionProvider"])
    found = bench(
        source_of(model),
        data=data,
        runs=conf.iteration if conf.iteration > 0 else None,
        warm_up=conf.warmup,
        threads=conf.cores_per_instance or conf.intra_num_of_threads,
        profile=False,
        progress=False,
    ).models[0]
    print(f"Latency: {found.median:.3f} ms\nThroughput: {found.throughput:.3f} samples/sec")
    return found
