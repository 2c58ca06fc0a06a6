"""The verbs that assess models: compare, find the most sensitive nodes, inspect, time, verify."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from bitwright import graph
from bitwright.assess import (
    Benchmark,
    BenchRequest,
    Comparison,
    GenerationBenchmark,
    GenerationRequest,
    Inspection,
    Sensitivity,
    bench_models,
    inspect_model,
)
from bitwright.assess import bench_generation as time_generation
from bitwright.data import Transform
from bitwright.errors import TargetError
from bitwright.graph import ModelSource
from bitwright.jobs.comparison import Measuring, compare_pair
from bitwright.jobs.folder_data import with_configuration_beside
from bitwright.jobs.sensitivity import SENSITIVITY_SAMPLES, measure_sensitivity
from bitwright.jobs.timing import prepare_yardstick
from bitwright.observe import MEMORY_BUDGET, Engine
from bitwright.plan import QuantPlan
from bitwright.support import Progress, check_arguments
from bitwright.targets import TARGETS
from bitwright.verification import Verification, verify_model
from bitwright.verification.golden import check_golden
from bitwright.verification.runtime_versions import verify_for_version


@check_arguments
def compare(
    float_model: ModelSource,
    quantized_model: ModelSource,
    *,
    data: Any,
    limit: int | None = None,
    transform: Transform = None,
    plan: QuantPlan | str | Path | None = None,
    providers: Sequence[str] | None = None,
    memory_budget: int = MEMORY_BUDGET,
    engine: Engine | str | None = None,
    progress: Progress = True,
) -> Comparison:
    """Run a float model and a quantized one, whoever made it, on the same samples, side by side.

    One pass over the data gives the error of each tensor that both have, accumulated and of its
    node alone. Memory does not grow with the number of samples.

    Args:
        float_model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`; it is never changed.
        quantized_model: the same with Q/DQ pairs, integer operators, or quantized at run time.
        data: anything `bitwright.open_data` takes, or `RandomData()`.
        limit: use at most this many samples.
        transform: how images become arrays, or a function that is given each item of the data.
        plan: the plan that made the quantized model, if there is one: it says why nodes are float.
        providers: execution providers of ONNX Runtime for every run.
        memory_budget: bytes of compared tensors that may be alive at once.
        engine: where samples are run: `"ray"` or `"ray://host:10001"` for a cluster, or a
            `bitwright.observe.RayEngine`; None: this process. The result is the same.
        progress: show a bar on a terminal, or call this with (samples done, samples in all).

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> quantized = bitwright.quantize(demo.model_path, data=demo.calibration[:32])
    >>> found = bitwright.compare(demo.model_path, quantized.model, data=demo.calibration[:8])
    >>> found.outputs[0].sqnr > 20, found.samples
    (True, 8)
    """
    if plan is not None and not isinstance(plan, QuantPlan):
        plan = QuantPlan.load(plan)
    data = with_configuration_beside(float_model, data)
    given = (data, limit, transform, memory_budget, providers, engine, progress)
    with Measuring.connected(*given) as measuring:
        return compare_pair(float_model, quantized_model, plan, measuring)


@check_arguments
def find_sensitivity(
    float_model: ModelSource,
    plan: QuantPlan | str | Path,
    *,
    data: Any,
    limit: int = SENSITIVITY_SAMPLES,
    transform: Transform = None,
    candidates: int | None = None,
    providers: Sequence[str] | None = None,
    memory_budget: int = MEMORY_BUDGET,
    engine: Engine | str | None = None,
    progress: Progress = True,
) -> Sensitivity:
    """Measure how much each quantized node of a plan adds to the error of the outputs.

    For each node the model runs once with only this node quantized and once with all others;
    what these runs have in common is computed once. `result.proposal()` then looks for the plan
    that puts the fewest nodes back.

    Args:
        float_model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`; it is never changed.
        plan: a plan for this model, or its file.
        data: anything `bitwright.open_data` takes, or `RandomData()`.
        limit: use at most this many samples; each of them is run for each node.
        transform: how images become arrays, or a function that is given each item of the data.
        candidates: measure only so many nodes, those that lose most on their own; None: all.
        providers: execution providers of ONNX Runtime for every run.
        memory_budget: bytes of constants of variants that may be in memory at once.
        engine: where nodes are measured: `"ray"` or `"ray://host:10001"` for a cluster, or a
            `bitwright.observe.RayEngine`; None: this process. The result is the same.
        progress: show a bar on a terminal, or call this with (variants done, variants in all).

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> plan = bitwright.make_plan(demo.model_path, data=demo.calibration[:16], recipe="int8")
    >>> found = bitwright.find_sensitivity(demo.model_path, plan, data=demo.calibration[:2])
    >>> better = found.proposal(regain=0.5, most=0.5)
    >>> better.sqnr > found.sqnr, isinstance(better.plan, bitwright.QuantPlan)
    (True, True)
    """
    if not isinstance(plan, QuantPlan):
        plan = QuantPlan.load(plan)
    data = with_configuration_beside(float_model, data)
    given = (data, limit, transform, memory_budget, providers, engine, progress)
    with Measuring.connected(*given) as measuring:
        return measure_sensitivity(float_model, plan, measuring, candidates=candidates)


@check_arguments
def inspect(model: ModelSource) -> Inspection:
    """Return what is in a model: ops, types, opsets, sizes, and what is quantized and how.

    >>> import bitwright
    >>> bitwright.inspect(bitwright.load_demo().model_path).is_quantized
    False
    """
    return inspect_model(graph.load_model(model))


@check_arguments
def bench(
    models: ModelSource | Sequence[ModelSource],
    *,
    data: Any = None,
    limit: int | None = None,
    transform: Transform = None,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    batch: int | None = None,
    seconds: float = 3.0,
    runs: int | None = None,
    warm_up: int = 3,
    threads: int | None = None,
    providers: Sequence[str] | None = None,
    prepare: bool = True,
    profile: bool = True,
    runtime: Literal["web"] | None = None,
    progress: Progress = True,
) -> Benchmark:
    """Time models against each other, and name the nodes that became slower or stayed float.

    Each model runs in a process of its own, whose peak memory is reported; they run in turns. The
    first is what the others are held against: a float one runs as `quantize` prepares it.

    Args:
        models: one or more paths, `onnx.ModelProto`s or `onnx_ir.Model`s.
        data: samples to run, as for `quantize`; None makes random ones.
        limit: use at most this many samples.
        transform: how images become arrays, or a function that is given each item of the data.
        shapes: for random samples: input name -> shape, or name of an open dimension -> size.
        batch: put so many samples into one run; the leading dimension must be open.
        seconds: time for each model.
        runs: runs of each model, instead of `seconds`.
        warm_up: runs before, which are not counted.
        threads: threads of each model; None means all cores.
        providers: execution providers of ONNX Runtime.
        prepare: where there are several models, run the first as it is prepared to be quantized.
        profile: also time every node, in further runs.
        runtime: `"web"`: as a browser does, in npm's onnxruntime-web by node, on one thread.
        progress: show a bar on a terminal, or call this with (rounds done, rounds in all).

    >>> import bitwright
    >>> bitwright.bench(bitwright.load_demo().model_path, runs=5).models[0].median > 0
    True
    """
    options = dict(locals())
    chosen, prepare = _as_list(options.pop("models")), options.pop("prepare")
    request = BenchRequest(**options)
    request.check(chosen)
    side = prepare_yardstick(chosen[0]) if prepare and len(chosen) > 1 else None
    return bench_models(chosen, request, None if side is None else side.reference)


@check_arguments
def bench_generation(
    models: ModelSource | Sequence[ModelSource],
    *,
    prompt_tokens: int = 128,
    new_tokens: int = 64,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    seconds: float = 10.0,
    runs: int | None = None,
    warm_up: int = 1,
    threads: int | None = None,
    providers: Sequence[str] | None = None,
    progress: Progress = True,
) -> GenerationBenchmark:
    """Time language models against each other: tokens in a second, of a prompt and behind it.

    A run reads a prompt of random tokens at once (prefill), then new tokens one by one, each with
    the cache that the one before made (decoding). Each model has a process of its own, and they
    run in turns.

    Args:
        models: decoders with a cache (inputs like `past_key_values.0.key`), which ONNX Runtime
            runs, or folders with a `genai_config.json`. Where only folders are given and
            onnxruntime-genai is installed, it runs them. The first is what the others are held
            against.
        prompt_tokens: tokens that are read at once.
        new_tokens: tokens that are generated one by one.
        shapes: name of an open dimension -> size, where no configuration beside a model says it.
        seconds: time for each model, if that is enough for five runs.
        runs: runs of each model, instead of `seconds`.
        warm_up: runs before, which are not counted.
        threads: threads of each model; None means all cores.
        providers: execution providers of ONNX Runtime; folders name their own.
        progress: show a bar on a terminal, or call this with (rounds done, rounds in all).

    >>> import bitwright
    >>> bitwright.bench_generation(bitwright.load_demo().model_path)
    Traceback (most recent call last):
    bitwright.errors.ModelError: ... has no cache of tokens (inputs like past_key_values.0.key), \
and does not generate one by one; leave the numbers of tokens out, or export it with its cache.
    """
    options = dict(locals())
    return time_generation(_as_list(options.pop("models")), GenerationRequest(**options))


def _as_list(models: ModelSource | Sequence[ModelSource]) -> Sequence[ModelSource]:
    single = isinstance(models, (str, os.PathLike)) or not isinstance(models, Sequence)
    return [models] if single else models  # type: ignore[list-item, return-value]


@check_arguments
def verify(
    model: ModelSource,
    target: str = "cpu",
    *,
    cpu: str | None = None,
    providers: Sequence[str] | None = None,
    runtime: str | None = None,
) -> Verification:
    """Check a quantized model, whoever made it, against what its target can run.

    Errors break the model, or make it leave its accelerator; warnings cost speed, or depend on the
    data. `found.ok` looks at the errors, `found.passes(strict=True)` at both, and
    `found.residence` says how much of the model stays on the target.

    Args:
        model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`; it is never changed.
        target: a name of `bitwright.TARGETS`, with a variant as in `"qualcomm-htp:v68"`, or a
            file of your own, whose name ends with .toml; `"here"` asks the model again for the
            golden answers that `publish` stored in it, on this machine.
        cpu: the kind of CPU for the target cpu, `"avx2"` (x86 without VNNI), `"vnni"` or `"arm"`;
            None means that of this machine.
        providers: for `"here"`: execution providers of ONNX Runtime.
        runtime: instead of a target: what this version of ONNX Runtime, as in `"1.20"`, is known to
            refuse, to compute wrongly or to crash on.

    >>> import bitwright
    >>> found = bitwright.verify(bitwright.load_demo().model_path)
    >>> [str(finding) for finding in found.findings]
    ['model: quantized: nothing in it is quantized; quantize it first']
    """
    loaded = graph.load_model(model, sort=False)
    if runtime is not None:
        return verify_for_version(loaded, runtime)
    if target == "here" and cpu is None:
        return check_golden(loaded, providers)
    if providers is not None:
        raise TargetError("providers run the golden answers (target 'here'); leave them out.")
    return verify_model(loaded, target, cpu)


@check_arguments
def verify_targets(
    model: ModelSource, targets: Sequence[str] | None = None
) -> dict[str, Verification]:
    """Check a quantized model against many targets: where can this file run?

    Args:
        model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`; it is never changed.
        targets: names or files of targets; None: all that come with the package, but for the
            machine's own CPU, which is one of them.

    >>> import bitwright
    >>> found = bitwright.verify_targets(bitwright.load_demo().model_path, ["arm-cpu"])
    >>> found["arm-cpu"].ok
    False
    """
    chosen = [name for name, one in TARGETS.items() if not one.host] if targets is None else targets
    loaded = graph.load_model(model, sort=False)
    return {name: verify_model(loaded, name) for name in chosen}
