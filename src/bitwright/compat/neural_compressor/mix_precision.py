"""`neural_compressor.mix_precision`: a model in float16 or bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bitwright.api import quantize
from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.neural_compressor.config import MixedPrecisionConfig
from bitwright.compat.neural_compressor.inputs import source_of
from bitwright.compat.neural_compressor.op_settings import setting_by_node
from bitwright.compat.neural_compressor.quantization.fitting import evaluation_by, warn_of_unread
from bitwright.compat.neural_compressor.quantization.within_loss import first_within
from bitwright.compat.options import find_name
from bitwright.errors import RecipeError
from bitwright.graph import load_model, normalize
from bitwright.recipe import named_recipe


def fit(
    model: Any,
    conf: MixedPrecisionConfig,
    eval_func: Callable[[Any], float] | None = None,
    eval_dataloader: Any = None,
    eval_metric: Any = None,
    **kwargs: Any,
) -> ONNXModel | None:
    """Convert a model, other than there for CPUs too; None, with a warning: it is not within.

    >>> import bitwright
    >>> half = fit(bitwright.load_demo().model_path, MixedPrecisionConfig(precisions="fp16"))
    >>> half.nodes()[0].op_type
    'Cast'
    """
    warn_of_unread(conf, kwargs)
    asked = [conf.precisions] if isinstance(conf.precisions, str) else list(conf.precisions)
    asked = [one for one in asked if one not in conf.excluded_precisions]
    if not asked:
        raise RecipeError("excluded_precisions leaves none of precisions; change one of them.")
    kinds = {"fp16": "float16", "bf16": "bfloat16"}
    recipe = named_recipe(find_name(asked[-1], kinds, "precisions"))
    work = load_model(source_of(model))
    normalize(work)
    settings = setting_by_node(work, conf.op_type_dict, conf.op_name_dict)
    kept = tuple(name for name, setting in settings.items() if setting.keep_float)
    made = quantize(source_of(model), recipe=recipe.replace(select={"exclude": kept}))
    found = ONNXModel(made.model, made.plan)
    evaluate = evaluation_by(eval_func, eval_dataloader, eval_metric)
    if evaluate is None:
        return found
    return first_within([found], evaluate, model, conf.accuracy_criterion)
