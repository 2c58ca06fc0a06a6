"""`fit`: quantization by a config of Neural Compressor 2.x, within a loss or without one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import onnx_ir as ir

from bitwright.api import quantize
from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.neural_compressor.config import PostTrainingQuantConfig
from bitwright.compat.neural_compressor.inputs import prepare_inputs, source_of
from bitwright.compat.neural_compressor.metric import evaluation_of
from bitwright.compat.neural_compressor.op_settings import (
    OpSetting,
    apply_op_settings,
    setting_by_node,
)
from bitwright.compat.neural_compressor.products import product_types, quantize_products
from bitwright.compat.neural_compressor.quantization.weight_only_configs import (
    get_woq_tuning_config,
)
from bitwright.compat.neural_compressor.quantization.within_loss import (
    TUNED_FOR_CPU,
    closest,
    first_within,
    tune_within,
)
from bitwright.compat.neural_compressor.recipe_switches import apply_switches
from bitwright.errors import DataError, RecipeError
from bitwright.graph import load_model, normalize
from bitwright.recipe import Recipe, named_recipe
from bitwright.support.wording import warn_user

Evaluate = Callable[[Any], float]
_CPU = ["CPUExecutionProvider"]
# What says where or how a model runs there, and the values that ask for nothing else.
_UNREAD: dict[str, tuple[Any, ...]] = {
    "device": ("cpu",),
    "backend": ("default",),
    "inputs": ((), []),
    "outputs": ((), []),
    "diagnosis": (False,),
    "example_inputs": (None,),
}


def fit(
    model: Any,
    conf: PostTrainingQuantConfig,
    calib_dataloader: Any = None,
    calib_func: Callable[..., Any] | None = None,
    eval_func: Evaluate | None = None,
    eval_dataloader: Any = None,
    eval_metric: Any = None,
    **kwargs: Any,
) -> ONNXModel | None:
    """Quantize a model as far as `eval_func(onnx.ModelProto) -> float` allows.

    `eval_dataloader` and `eval_metric` make such a function. Without one the model is quantized,
    and nothing is evaluated. None comes back, with a warning, where no model is within the loss.

    >>> import bitwright
    >>> from bitwright.compat.neural_compressor import PostTrainingQuantConfig, quantization
    >>> demo = bitwright.load_demo()
    >>> loader = [(image[None], 0) for image in demo.calibration[:16]]
    >>> config = PostTrainingQuantConfig(op_name_dict={"classify": {"weight": {"dtype": "fp32"}}})
    >>> small = quantization.fit(demo.model_path, config, calib_dataloader=loader)
    >>> small.plan.nodes["classify"].quantized
    False
    """
    if calib_func is not None:
        raise RecipeError("calib_func has no form for ONNX models; give calib_dataloader.")
    warn_of_unread(conf, kwargs)
    evaluate = evaluation_by(eval_func, eval_dataloader, eval_metric)
    if conf.mode == "weight_only":
        return _fit_weights(model, conf, calib_dataloader, evaluate)
    work = load_model(source_of(model))
    normalize(work)
    recipe = recipe_of(conf, work)
    if conf.mode == "dynamic":
        made = _quantized(model, recipe)
        if evaluate is None:
            return made
        return first_within([made], evaluate, model, conf.accuracy_criterion)
    if calib_dataloader is None:
        raise DataError("fit calibrates; give calib_dataloader.")
    samples, _ = prepare_inputs(model, conf.samples, calib_dataloader, _CPU)
    if evaluate is None:
        return _quantized(model, recipe, samples)
    tuning = conf.tuning_criterion
    goal = {"purpose": tuning.purpose, "time": tuning.timeout or None, "recipe": recipe}
    return closest(tune_within(model, samples, evaluate, conf.accuracy_criterion, **goal))


def warn_of_unread(conf: Any, options: Iterable[str]) -> None:
    """Warn of options that ask for other devices, or for what is not looked at."""
    ignored = [f"option {name!r}" for name in options]
    for name, usual in _UNREAD.items():
        if getattr(conf, name, usual[0]) not in usual:
            ignored.append(f"{name} {getattr(conf, name)!r}")
    for what in ignored:
        warn_user(f"{what} is ignored: {TUNED_FOR_CPU}.")


def recipe_of(conf: PostTrainingQuantConfig, model: ir.Model) -> Recipe:
    """Return the recipe that a config of a static or dynamic model stands for."""
    dynamic = conf.mode == "dynamic"
    recipe = named_recipe("int8-dynamic" if dynamic else "int8-per-channel")
    recipe = recipe.replace(name="fit", reduce_range=bool(conf.reduce_range))
    named = conf.op_type_dict, conf.op_name_dict
    if dynamic:
        recipe = apply_op_settings(
            recipe.replace(dynamic_scale="tensor"), model, *named, dynamic=True
        )
        for name in conf.recipes or {}:
            warn_user(f"{name} of recipes is ignored: a dynamic model has no ranges and no pairs.")
    else:
        recipe = apply_op_settings(recipe.replace(format=conf.format), model, *named)
        recipe = apply_switches(recipe, model, conf.recipes)
    # Clean-ups may take nodes away that are named, and there names that fit nothing are ignored.
    return recipe.replace(select={"unknown_names": "warn"})


def evaluation_by(function: Evaluate | None, loader: Any, metric: Any) -> Evaluate | None:
    """Return the function that measures a model, if any: `eval_func` before the other two."""
    if function is not None:
        return function
    if metric is None:
        return None
    if loader is None:
        raise DataError("eval_metric measures what eval_dataloader gives; give both.")
    return evaluation_of(metric, loader)


def _quantized(model: Any, recipe: Recipe, samples: Any = None) -> ONNXModel:
    made = quantize(
        source_of(model),
        data=samples,
        recipe=recipe,
        force_dynamic=recipe.mode == "dynamic",
        progress=False,
    )
    return ONNXModel(made.model, made.plan)


def _fit_weights(
    model: Any, conf: PostTrainingQuantConfig, loader: Any, evaluate: Evaluate | None
) -> ONNXModel | None:
    """Quantize weights alone as they are asked for; tuned, in steps where no algorithm is named."""
    work = load_model(source_of(model))
    normalize(work)
    settings = setting_by_node(work, conf.op_type_dict, conf.op_name_dict)
    plain = {name: settings.get(name, OpSetting()).of_weight() for name in product_types(model)}
    recipes = conf.recipes or {}
    arguments = {name: recipes.get(f"{name.lower()}_args") or {} for name in ("RTN", "GPTQ", "AWQ")}
    for name in recipes:
        if name not in ("rtn_args", "gptq_args", "awq_args"):
            warn_user(
                f"{name} of recipes is ignored: it is about models with quantized activations."
            )

    def made(config: dict[str, Any]) -> ONNXModel:
        return quantize_products(model, config, arguments, loader, conf.samples)

    if evaluate is None:
        return made(plain)
    configs = [plain]
    if all(setting.algorithm is None for setting in settings.values()):
        steps = get_woq_tuning_config()[: None if loader is not None else 1]
        configs = [step.over(plain) for step in steps]
    models = (made(config) for config in configs[: conf.tuning_criterion.max_trials])
    return first_within(models, evaluate, model, conf.accuracy_criterion)
