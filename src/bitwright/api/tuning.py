"""The verbs that go by a metric of the user's: tune a model to it, or pass or fail one by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwright import graph
from bitwright.api.recipes import load_recipe
from bitwright.data import Transform, paths_of
from bitwright.graph import ModelSource
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.folder_data import with_configuration_beside
from bitwright.observe import MEMORY_BUDGET, Engine, open_engine
from bitwright.recipe import Recipe, settle_for_host
from bitwright.support.arguments import check_arguments

if TYPE_CHECKING:
    from bitwright.jobs.gate import GateResult
    from bitwright.jobs.improve.effort import Effort
    from bitwright.jobs.tuning.result import TuneResult


@check_arguments
def tune(
    model: ModelSource,
    output: str | Path | None = None,
    *,
    data: Any,
    eval_data: Any = None,
    labels: Any = None,
    evaluate: Callable[..., Any] | str | None = None,
    evaluate_on: str = "sample",
    lower_is_better: bool = False,
    max_drop: float | str = 0.01,
    relative: bool = False,
    purpose: str = "speed",
    max_size: int | str | None = None,
    keep_quantized: bool = False,
    time: float | str | None = None,
    work: str | Path | None = None,
    recipe: str | Path | dict[str, Any] | Recipe | None = None,
    target: str | None = None,
    effort: Effort | None = None,
    limit: int | None = None,
    eval_limit: int | None = None,
    transform: Transform = None,
    external_data: bool | None = None,
    memory_budget: int = MEMORY_BUDGET,
    engine: Engine | str | None = None,
    providers: Sequence[str] | None = None,
    log: Callable[[str], None] | None = None,
) -> TuneResult:
    """Quantize a model as far as a metric allows, and report on samples that decided nothing.

    The plan of the accuracy cascade is evaluated first. If the metric falls too far, units of it
    are given more bits: those that regain most for what they cost, as a search along the front of
    cost against error says, which evaluates a dozen models at most. The best model so far is
    always written.

    Args:
        model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`; it is never changed.
        output: where to write the best model so far, and in the end the result.
        data: what to calibrate with: anything `bitwright.open_data` takes. Without `eval_data` a
            part of it evaluates, and then its samples may hold labels.
        eval_data: what the metric is evaluated on: the same kinds of data, and what a sample has
            beside the model's inputs is for the metric. A fifth of it is kept for the final figure.
        labels: one label for each of these samples: a list, an array or a file.
        evaluate: `score(outputs, sample) -> float`, with dicts of arrays by name, or the name of a
            metric: top1, top5, agreement, cosine, closeness, likelihood, or `score.py:function`.
            None: top1 where there are labels, else agreement with the float model.
        evaluate_on: what the function scores: a "sample"; a "set", as `score(outputs of all
            samples, all samples)`; or a "model", as `score(model, all samples)`, which returns a
            number or one for each sample.
        lower_is_better: for a function that measures an error.
        max_drop: how far the metric may fall: 0.01, or "1%" of a metric between 0 and 1.
        relative: take it as a share of the float model's score.
        purpose: "speed", measured on this machine beside the prepared float model, "balanced", the
            same with integers also where they only cost no time, or "size".
        max_size: bytes that the model may have, or "600MB", with purpose "size": of the models that
            fit, the one that loses least, whose drop must be within `max_drop`, too.
        keep_quantized: with these two, a quantized model even where float is as fast on this
            machine, for one that runs elsewhere.
        time: how long the search may take: seconds, or "20m". It ends with the best so far.
        work: a folder with a journal: a run that was killed goes on from there, and one with
            another drop or time finds all that was measured.
        recipe: a name, a `Recipe`, a dict or a file; None takes the target's own.
        target: where the model will run, `"cpu"` if not given.
        effort: one level of the accuracy cascade; None: "low" for time and "standard" for size,
            and "medium" if that fails.
        limit: use at most this many samples of `data`.
        eval_limit: use at most this many samples of `eval_data`.
        transform: how images become arrays, or a function that is given each item of the data.
        external_data: weights in a file of their own; None: only above 2 GB.
        memory_budget: bytes of samples and observed tensors that may be in memory at once.
        engine: where samples, trials and units are run: `"ray"` or `"ray://host:10001"` for a
            cluster, or a `bitwright.observe.RayEngine`; None: this process. Times of models are
            always measured here.
        providers: execution providers of ONNX Runtime for every run.
        log: hears what is being done, line by line, and how many evaluations there can be.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> result = bitwright.tune(
    ...     demo.model_path, data=demo.calibration[:32], effort="low", max_drop="2%",
    ...     eval_data={"image": demo.images[:100], "label": demo.labels[:100]},
    ...     evaluate=lambda outputs, sample: outputs["logits"].argmax() == sample["label"])
    >>> result.met, result.final.samples
    (True, 33)
    """
    from bitwright.jobs.improve.metrics import SCOPES, open_metric
    from bitwright.jobs.tuning.job import TuneRequest, tune_model
    from bitwright.jobs.tuning.request import Goal, check_word

    check_word("evaluate_on", evaluate_on, SCOPES)
    goal = Goal.asked(max_drop, relative, purpose, max_size, keep_quantized, time)
    if output is not None:
        file = recipe if isinstance(recipe, str | Path) and Path(recipe).suffix else None
        others = [*paths_of(data), *paths_of(eval_data), *paths_of(labels), file]
        graph.check_destination(output, source=model, others=others)
    scored: dict[str, Any] = {"scope": evaluate_on, "lower_is_better": lower_is_better}
    data, eval_data = (with_configuration_beside(model, one) for one in (data, eval_data))
    request = TuneRequest(
        source=model,
        output=None if output is None else Path(output),
        recipe=settle_for_host(load_recipe(recipe, target)),
        target=target,
        calibration=Calibration(
            data,
            limit,
            transform,
            holdout=False,
            memory_budget=memory_budget,
            engine=open_engine(engine),
            progress=False,
        ),
        eval_data=eval_data,
        labels=labels,
        metric=lambda labelled: open_metric(evaluate, labelled=labelled, **scored),
        goal=goal,
        effort=effort,
        eval_limit=eval_limit,
        work=None if work is None else Path(work),
        providers=providers,
        external_data=external_data,
        **({} if log is None else {"report": log}),
    )
    with request.calibration.engine.connect():
        return tune_model(request)


@check_arguments
def check(
    float_model: ModelSource,
    quantized_model: ModelSource,
    *,
    data: Any = None,
    eval_data: Any = None,
    labels: Any = None,
    evaluate: Callable[..., Any] | str | None = None,
    evaluate_on: str = "sample",
    lower_is_better: bool = False,
    max_drop: float | str = "1%",
    relative: bool = False,
    max_time: float | str = 1.0,
    max_size: int | str = "100%",
    target: str | None = None,
    limit: int | None = None,
    eval_limit: int | None = None,
    transform: Transform = None,
    memory_budget: int = MEMORY_BUDGET,
    engine: Engine | str | None = None,
    providers: Sequence[str] | None = None,
    log: Callable[[str], None] | None = None,
) -> GateResult:
    """Pass or fail a quantized model, whoever made it, by limits on accuracy, time and size.

    Args:
        float_model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`; it is never changed.
        quantized_model: the same.
        data: samples, where `eval_data` is not given: their answers are held against float's.
        eval_data: what the metric is evaluated on, as for `tune`; all of it is.
        labels: one label for each of these samples: a list, an array or a file.
        evaluate: the metric, as for `tune`; None: top1 where there are labels, else agreement with
            the float model.
        evaluate_on: what a function of yours scores, as for `tune`.
        lower_is_better: for a function that measures an error.
        max_drop: how far the metric may fall: 0.01, "1%" of one between 0 and 1, or "any".
        relative: take it as a share of the float model's score.
        max_time: times what the prepared float model takes on one thread, or "any"; what lies
            within the spread of the measurement passes.
        max_size: "30%" of the float model's bytes, a number of them, "20MB" or "any".
        target: also hold the model against the rules of this target.
        limit: use at most this many samples of `data`.
        eval_limit: use at most this many samples of `eval_data`.
        transform: how images become arrays, or a function that is given each item of the data.
        memory_budget: bytes of samples that may be in memory at once.
        engine: where samples are run, as for `tune`; times are measured here.
        providers: execution providers of ONNX Runtime.
        log: hears before the work what cannot be told with so few samples.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> made = bitwright.quantize(demo.model_path, data=demo.calibration[:32], purpose="size")
    >>> found = bitwright.check(demo.model_path, made.model, max_size="40%", max_time="any",
    ...     eval_data={"image": demo.images[:100], "label": demo.labels[:100]}, max_drop="3%")
    >>> found.passed, [criterion.name for criterion in found.criteria]
    (True, ['Accuracy', 'Size'])
    """
    from bitwright.data.labelled import open_labelled
    from bitwright.jobs.gate import GateLimits, GateRequest, check_model
    from bitwright.jobs.improve.metrics import SCOPES, open_metric
    from bitwright.jobs.tuning.request import check_word

    check_word("evaluate_on", evaluate_on, SCOPES)
    source, most = (data, limit) if eval_data is None else (eval_data, eval_limit)
    source = with_configuration_beside(float_model, source)
    reading = {"labels": labels, "limit": most, "transform": transform}
    scored: dict[str, Any] = {"scope": evaluate_on, "lower_is_better": lower_is_better}
    request = GateRequest(
        float_model=float_model,
        quantized_model=quantized_model,
        limits=GateLimits.asked(max_drop, relative, max_time, max_size),
        samples=None
        if source is None
        else lambda specs: open_labelled(source, specs, memory_budget=memory_budget, **reading),
        metric=lambda labelled: open_metric(evaluate, labelled=labelled, **scored),
        has_labels=labels is not None,
        target=target,
        providers=providers,
        engine=open_engine(engine),
        **({} if log is None else {"report": log}),
    )
    with request.engine.connect():
        return check_model(request)
