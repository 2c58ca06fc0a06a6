"""What observing on a Ray cluster costs: measured at 1, 2 and 4 workers, calculated beyond.

python benchmarks/ray_scale.py [--samples 32] [--workers 1 2 4]

The model is one where inference dominates (ResNet-18, 224 x 224). Of one pass in this process come
the seconds of a sample, of a merge, and the bytes of what is merged; the cost model is made of
these, and held against the measured passes:

    seconds = start + rounds * shard * sample * slower + merges

    rounds  shards that a worker gets, one after another
    slower  workers for each core, where there are more workers than cores
    merges  one in eight parts travels to the driver, is unpickled and merged there

Each pass is checked to give what a local one gives, before it is timed.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import time

import graphs
from measure import print_table

SHARD = 2
FAN_IN = 8
START = 60.0
"""Seconds until workers have started, for the calculation."""
BANDWIDTH = 1e9
"""Bytes in a second to the driver, for the calculation: a network of 10 Gbit/s."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    given = parser.parse_args()

    import ray

    from bitwright import graph
    from bitwright.observe import RayEngine, observe
    from bitwright.support.threads import limit_threads

    model = graph.load_model(graphs.resnet18())
    graph.infer_shapes(model)
    tensors = [node.outputs[0].name for node in model.graph]
    data = [{"image": image[None]} for image in graphs.make_images(given.samples, seed=1)]
    observe(model, tensors, data[:1], progress=False)  # compilers and caches
    begin = time.perf_counter()
    local = observe(model, tensors, data, progress=False)
    threads = (time.perf_counter() - begin) / len(data)
    limit_threads(1)  # as on a worker
    begin = time.perf_counter()
    observe(model, tensors, data[:8], progress=False)
    sample = (time.perf_counter() - begin) / 8
    part = observe(model, tensors, data[:SHARD], progress=False)
    sent = pickle.dumps(part)
    begin = time.perf_counter()
    _ = local | pickle.loads(sent)
    merge = time.perf_counter() - begin
    print(
        f"a sample {1e3 * sample:.0f} ms on one thread, {1e3 * threads:.0f} ms on all, a part "
        f"{len(sent) / 1e6:.2f} MB for {len(tensors)} tensors, a merge {1e3 * merge:.0f} ms, "
        f"{os.cpu_count()} cores"
    )

    def predict(workers: int, start: float) -> float:
        slower = max(1.0, workers / (os.cpu_count() or 1))
        rounds = math.ceil(len(data) / SHARD / workers)
        parts = math.ceil(len(data) / SHARD / FAN_IN)
        return start + rounds * SHARD * sample * slower + parts * merge

    rows = []
    cores = max(*given.workers, os.cpu_count() or 1)
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (Ray's own name)
    ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        for workers in given.workers:
            engine = RayEngine(workers=workers, shard=SHARD)
            begin = time.perf_counter()
            # One shard for each worker: they start, import and open the model.
            observe(model, tensors, data[: workers * SHARD], engine=engine, progress=False)
            first = time.perf_counter() - begin
            start = max(0.0, first - SHARD * sample * max(1.0, workers / (os.cpu_count() or 1)))
            begin = time.perf_counter()
            found = observe(model, tensors, data, engine=engine, progress=False)
            measured = time.perf_counter() - begin
            if found != local:
                raise SystemExit(f"{workers} workers gave something else than one process")
            expected = predict(workers, start)
            rows.append((f"{workers}", f"{start:.1f}", f"{measured:.1f}", f"{expected:.1f}"))
    finally:
        ray.shutdown()
    print_table(("workers", "start, s", "measured, s", "by the model, s"), rows)

    print("\ncalculated, with workers of one core like those here:")
    rows = []
    for machines, samples in ((1, 10_000), (10, 100_000), (1_000, 10_000_000)):
        shard = max(SHARD, samples // machines // 10)
        parts = math.ceil(samples / shard / FAN_IN)
        # Besides the sketch, a part has the extremes of each sample: 8 bytes for each tensor.
        size = FAN_IN * 8 * shard * len(tensors) + len(sent)
        seconds = START + samples / machines * sample
        rows.append(
            (
                f"{machines:,}",
                f"{samples:,}",
                f"{shard:,}",
                f"{seconds / 3600:.2f} h",
                f"{parts * merge:.0f} s",
                f"{parts * size / BANDWIDTH:.0f} s",
            )
        )
    print_table(
        ("workers", "samples", "shard", "inference", "merges here", "transfer at 1 GB/s"), rows
    )


if __name__ == "__main__":
    main()
