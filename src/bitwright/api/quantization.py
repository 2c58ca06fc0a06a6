"""The verbs that make models: quantize, plan, apply a plan, import, retarget, pre-process.

Each reads its arguments and calls a job, which is imported then: a plain one starts in half the
time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bitwright import graph
from bitwright.api.recipes import load_recipe
from bitwright.data import Transform, paths_of
from bitwright.errors import ArgumentError, RecipeError
from bitwright.graph import ModelSource
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.folder_data import with_configuration_beside
from bitwright.jobs.modes import apply_to_model
from bitwright.jobs.opening import Compute
from bitwright.jobs.placing import with_purpose
from bitwright.jobs.quantization import (
    QuantizeRequest,
    RecipeSource,
    plan_request,
    quantize_request,
    save_result,
    with_weights,
)
from bitwright.jobs.result import Result
from bitwright.observe import MEMORY_BUDGET, Engine, open_engine
from bitwright.plan import QuantPlan
from bitwright.recipe import Override, Purpose, Selection, is_of_host, settle_for_host
from bitwright.support import Progress, check_arguments

if TYPE_CHECKING:
    from bitwright.jobs.improve.effort import Effort
    from bitwright.jobs.preprocessing import Preprocessed
    from bitwright.jobs.qat import Format
    from bitwright.jobs.retargeting import Retargeted


@check_arguments
def quantize(
    model: ModelSource,
    output: str | Path | None = None,
    *,
    weights: str | Path | None = None,
    data: Any = None,
    recipe: RecipeSource = None,
    target: str | None = None,
    purpose: Purpose | None = None,
    cpu: str | None = None,
    force_dynamic: bool = False,
    effort: Effort | None = None,
    limit: int | None = None,
    transform: Transform = None,
    holdout: bool = True,
    sketches: str | Path | None = None,
    memory_budget: int = MEMORY_BUDGET,
    engine: Engine | str | None = None,
    external_data: bool | None = None,
    providers: Sequence[str] | None = None,
    work: str | Path | None = None,
    device: str = "cpu",
    timing: bool = False,
    progress: Progress = True,
) -> Result | Any:
    """Quantize a model with calibration data, prove that it runs, and write it.

    Given a folder, as exporters of language models write it, it quantizes all models in it, writes
    a folder with them and copies of all other files, and returns a `FolderResult`. (Its type does
    not say so: else whoever gives a file would have to ask which of the two it is.)

    Args:
        model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`; it is never changed.
        output: where to write the result; None writes nothing.
        weights: a GGUF file of the same model, whose weights take the place of the graph's own;
            needs `pip install 'bitwright[gguf]'`.
        data: anything `bitwright.open_data` takes, or `RandomData()`; for a folder also a text
            file, for which it has the tokenizer, or a dict with the data for each model by its
            path in the folder.
        recipe: a name, a `Recipe`, a dict or a file; None takes the target's own.
        target: where the model will run, `"cpu"` if not given.
        purpose: `"size"`: integers wherever the target takes them, `"balanced"`: unless they cost
            time, `"speed"`: only where they save time. None: as the recipe says.
        cpu: the class of CPU whose costs decide on that, such as `"x86-vnni"`, or a file of costs
            that `bitwright bench --costs` wrote; None: that of this machine.
        force_dynamic: let a dynamic recipe take convolutions, too, which it makes 2 to 4 times
            slower. Else they stay float, and a model that has most of its multiply-adds in them is
            refused, but where the recipe names them or the nodes to quantize.
        effort: what to try on top of the recipe, `"low"`: nothing, `"standard"`: range methods
            and bias correction, `"medium"`: gain correction, equalization and smoothing, too,
            `"high"`: also AdaRound on the most sensitive segments. What is closer to float on
            samples that it was not made from is taken. None: `"standard"` where no recipe is given
            and the data can be compared by, else `"low"`.
        limit: use at most this many samples.
        transform: how images become arrays, or a function that is given each item of the data.
        holdout: keep every eighth sample (at most eight) out of calibration and measure the
            result on those.
        sketches: a file that keeps what was observed; if it exists and belongs to this model,
            the data is not run again. It serves every range method, and recipes that leave other
            nodes float; not op types that are not quantized by default where it was written
            without them, nor ranges for each channel of an activation where it has none.
        memory_budget: bytes of observed tensors that may be alive at once.
        engine: where samples are run, and weights rounded and learned: `"ray"` or
            `"ray://host:10001"` for a cluster, or a `bitwright.observe.RayEngine`; None: this
            process. The result is the same.
        external_data: weights in a file of their own; None: only above 2 GB.
        providers: execution providers of ONNX Runtime for every run.
        work: weight-only recipes and fine-tuning: a folder that keeps each weight as soon as it
            is rounded, and each segment as soon as it has learned; a run that was interrupted goes
            on from there, and one with another model, recipe or data is refused. For other recipes
            with an `engine`: keeps what was observed of every 64 samples.
        device: weight-only recipes and fine-tuning: where the arithmetic runs, "cpu", or "cuda"
            with torch.
        timing: time the result beside the prepared float model, for two seconds at most, once it
            is written: `result.clock`, which the verdict names. That is None for targets that are
            not this machine's CPU, and for models of more than a gigabyte or half a second a run.
        progress: show a bar on a terminal, or call this with (samples done, samples in all).

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> result = bitwright.quantize(demo.model_path, data=demo.calibration[:64])
    >>> result.outputs[0].agreement > 0.9
    True
    """
    return quantize_request(_request(**locals()))


@check_arguments
def make_plan(
    model: ModelSource,
    *,
    weights: str | Path | None = None,
    data: Any = None,
    recipe: RecipeSource = None,
    target: str | None = None,
    purpose: Purpose | None = None,
    cpu: str | None = None,
    force_dynamic: bool = False,
    effort: Effort | None = None,
    limit: int | None = None,
    transform: Transform = None,
    sketches: str | Path | None = None,
    memory_budget: int = MEMORY_BUDGET,
    engine: Engine | str | None = None,
    providers: Sequence[str] | None = None,
    progress: Progress = True,
) -> QuantPlan:
    """Decide everything and write nothing: the plan can be read, edited and applied later.

    The options are those of `quantize`; every sample is used for calibration.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> plan = bitwright.make_plan(demo.model_path, data=demo.calibration[:16])
    >>> plan.recipe.name
    'int8-per-channel'
    """
    return plan_request(_request(holdout=False, **locals()))


_CALIBRATION = ("data", "limit", "transform", "holdout", "sketches", "memory_budget", "progress")


def _request(**given: Any) -> QuantizeRequest:
    """Return what `quantize` and `make_plan` ask for by these arguments."""
    asked, engine = given.pop("recipe"), open_engine(given.pop("engine"))
    target = given.pop("target")
    recipe = settle_for_host(load_recipe(asked, target))
    if given.get("force_dynamic") and recipe.mode != "dynamic":
        raise RecipeError(
            f"force_dynamic is for dynamic recipes, and {recipe.name!r} is {recipe.mode}; leave it "
            "out."
        )
    read = {name: given.pop(name) for name in _CALIBRATION}
    read["data"] = with_configuration_beside(given["model"], read["data"])
    return QuantizeRequest(
        source=given.pop("model"),
        asked=asked,
        recipe=with_purpose(recipe, given.pop("purpose"), given.pop("cpu")),
        calibration=Calibration(**read, engine=engine),
        compute=Compute(given.pop("device", "cpu"), given.pop("work", None)),
        timing=given.pop("timing", False),
        elsewhere=target is not None and not is_of_host(target),
        **given,
    )


@check_arguments
def apply_plan(
    plan: QuantPlan | str | Path,
    model: ModelSource,
    output: str | Path | None = None,
    *,
    weights: str | Path | None = None,
    data: Any = None,
    limit: int | None = None,
    transform: Transform = None,
    external_data: bool | None = None,
    providers: Sequence[str] | None = None,
    work: str | Path | None = None,
    device: str = "cpu",
    engine: Engine | str | None = None,
    progress: Progress = True,
) -> Result:
    """Quantize a model as a plan says; data, if given, only measures the result.

    The plan of `import_qat` goes with the trained model.

    Weight-only plans with GPTQ round by the data, and plans that fine-tune learn from it, so they
    need it; `work`, `device`, `engine` and `progress` are for these, as in `quantize`. A plan that
    was made with `weights` is applied with them.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> plan = bitwright.make_plan(demo.model_path, data=demo.calibration[:16])
    >>> bitwright.apply_plan(plan, demo.model_path).plan == plan
    True
    """
    if output is not None:
        others = [*paths_of(data), None if isinstance(plan, QuantPlan) else plan]
        graph.check_destination(output, source=model, others=others)
    if not isinstance(plan, QuantPlan):
        plan = QuantPlan.load(plan)
    data = with_configuration_beside(model, data)
    model = with_weights(model, weights, output)
    calibration = Calibration(data, limit, transform, engine=open_engine(engine), progress=progress)
    if data is None and not calibration.engine.is_local:
        raise ArgumentError("without data an engine has nothing to do; leave it out, or give data.")
    with calibration.engine.connect():
        result = apply_to_model(plan, model, calibration, providers, Compute(device, work))
    return save_result(result, output, external_data)


@check_arguments
def import_qat(
    model: ModelSource,
    output: str | Path | None = None,
    *,
    format: Format = "qdq",
    select: Selection | None = None,
    optimize: bool = True,
    data: Any = None,
    limit: int | None = None,
    transform: Transform = None,
    external_data: bool | None = None,
    providers: Sequence[str] | None = None,
) -> Result:
    """Turn a model that was trained with Q/DQ pairs into one that the runtime fuses.

    Every trained scale is kept as it is: weights become the integers they were trained to be,
    biases int32, and pairs stand where the runtime looks for them. Nodes without trained scales
    stay float, each with its reason in `result.plan`.

    Args:
        model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`; it is never changed.
        output: where to write the result; None writes nothing.
        format: `"qdq"`, or `"qoperator"` for integer ops.
        select: nodes that stay float although they were trained otherwise.
        optimize: fold constants first, as `quantize` does.
        data: if given, measures the result against the trained model.
        limit: use at most this many samples, 8 if not given.
        transform: how images become arrays, or a function that is given each item of the data.
        external_data: weights in a file of their own; None: only above 2 GB.
        providers: execution providers of ONNX Runtime for every run.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> bitwright.import_qat(demo.model_path)
    Traceback (most recent call last):
    bitwright.errors.ModelError: the model has no Q/DQ pairs from training; quantize it with \
calibration data instead.
    """
    from bitwright.jobs.qat import quantize_trained

    if output is not None:
        graph.check_destination(output, source=model, others=paths_of(data))
    calibration = Calibration(data, limit, transform)
    result = quantize_trained(model, format, select, optimize, calibration, providers)
    return save_result(result, output, external_data)


@check_arguments
def retarget(
    model: ModelSource,
    to: str,
    output: str | Path | None = None,
    *,
    format: Format | None = None,
    plan: QuantPlan | str | Path | None = None,
    block_size: int | None = None,
    external_data: bool | None = None,
) -> Retargeted:
    """Write a quantized model in the encoding of another target, without data.

    The numbers stay the same: int8 and uint8 activations change by moving zero points by 128,
    integer operators and Q/DQ pairs change into each other. What cannot be written so, as
    asymmetric activations for a target with symmetric ones, is refused.

    Args:
        model: a quantized model; with `plan` the float one that the plan is of.
        to: the target, a name of `bitwright.TARGETS` or a file of your own.
        output: where to write the result; None writes nothing.
        format: `"qdq"` or `"qoperator"`; None: pairs where the target takes no integer operators.
        plan: a kept plan: scales of weights are made anew for the target, of channels instead of
            blocks or the other way round; those of activations stay.
        block_size: with `plan`: blocks of so many weights, 0 for none; None: the plan's own.
        external_data: weights in a file of their own; None: only above 2 GB.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> made = bitwright.quantize(
    ...     demo.model_path, data=demo.calibration[:8], recipe="int8-symmetric", target="arm-cpu"
    ... )
    >>> bitwright.retarget(made.model, "x86-vnni").changes
    ('moved the zero points of 20 tensors, now uint8',)
    """
    from bitwright.jobs.retargeting import retarget_with_plan

    kept = plan if isinstance(plan, QuantPlan) or plan is None else QuantPlan.load(plan)
    if output is not None:
        others = [None if isinstance(plan, QuantPlan) else plan]
        graph.check_destination(output, source=model, others=others)
    made = retarget_with_plan(model, to, kept, format=format, block_size=block_size)
    if output is not None:
        made.save(output, external_data=external_data)
    return made


@check_arguments
def write_encodings(
    plan: QuantPlan | str | Path,
    output: str | Path,
    *,
    version: Literal["0.6.1", "1.0.0"] = "1.0.0",
) -> None:
    """Write what a plan decided as an encodings file of AIMET and QNN.

    Args:
        plan: a static plan, or its file.
        output: where to write the JSON.
        version: of the format, `"1.0.0"` or `"0.6.1"`.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> plan = bitwright.make_plan(demo.model_path, data=demo.calibration[:8], recipe="int8")
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bitwright.write_encodings(plan, Path(folder) / "demo.encodings")
    ...     bitwright.read_encodings(Path(folder) / "demo.encodings")["image"].qtype
    UINT8
    """
    from bitwright.jobs.encodings import write_encodings_file

    graph.check_destination(output)
    kept = plan if isinstance(plan, QuantPlan) else QuantPlan.load(plan)
    write_encodings_file(kept, output, version=version)


@check_arguments
def read_encodings(
    path: str | Path, *, activation_signed: bool = False, axes: Mapping[str, int] | None = None
) -> dict[str, Override]:
    """Read an encodings file of AIMET or QNN as the overrides of a recipe.

    `load_recipe(...).replace(overrides=read_encodings(path))` then quantizes with these scales.

    Args:
        path: the JSON file, of version 0.6.1 or 1.0.0.
        activation_signed: activations as signed integers; else as unsigned ones.
        axes: the channel axis of parameters by name; 0 for those that are not named.

    >>> import bitwright
    >>> bitwright.read_encodings("nowhere.encodings")
    Traceback (most recent call last):
    bitwright.errors.RecipeError: cannot read the encodings 'nowhere.encodings': No such file or \
directory.
    """
    from bitwright.jobs.encodings import read_overrides

    return read_overrides(path, activation_signed=activation_signed, axes=axes)


@check_arguments
def preprocess(
    model: ModelSource,
    output: str | Path | None = None,
    *,
    weights: str | Path | None = None,
    optimize: bool = True,
    onnx_shapes: bool = True,
    symbolic_shapes: bool = True,
    auto_merge: bool = False,
    int_max: int = 2**31 - 1,
    guess_output_rank: bool = False,
    verbose: int = 0,
    external_data: bool | graph.ExternalData | None = None,
) -> Preprocessed:
    """Clean up a float model and fill in its shapes, and write it: the step before quantizing.

    `quantize` does all of it by itself; this is for looking at the model in between, and for
    other tools. A step that cannot run is left out with a warning, and is in `result.skipped`.

    Args:
        model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`; it is never changed.
        output: where to write the result; None writes nothing.
        weights: a GGUF file of the same model, whose weights take the place of the graph's own;
            needs `pip install 'bitwright[gguf]'`.
        optimize: fold constants, batch norms and constant scales, and drop what does nothing.
        onnx_shapes: run ONNX's shape inference.
        symbolic_shapes: run ONNX Runtime's symbolic shape inference.
        auto_merge: take two names of dimensions that must be equal for one.
        int_max: the integer that means "to the end" in a Slice.
        guess_output_rank: take unknown ops to keep the rank of their first input.
        verbose: how much symbolic shape inference logs: 0 nothing, 1 warnings, 3 everything.
        external_data: weights in files of their own; None: only above 2 GB.

    >>> import bitwright
    >>> bitwright.preprocess(bitwright.load_demo().model_path).skipped
    {}
    """
    options = dict(locals())  # all that the job takes, and what the verb does with the result
    from bitwright.jobs.preprocessing import preprocess_model

    for name in ("model", "output", "weights", "external_data"):
        options.pop(name)
    if output is not None:
        graph.check_destination(output, source=model)
    result = preprocess_model(with_weights(model, weights, output), **options)
    if output is not None:
        graph.save_model(result.model, output, external_data=external_data)
        result.path = Path(output)
    return result
