"""`neural_compressor.metric`: metrics of a model's outputs over a loader of inputs and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np
import onnxruntime

from bitwright.compat.neural_compressor.inputs import feed_of
from bitwright.errors import DataError, RecipeError, did_you_mean
from bitwright.support.array_types import Array


class Metric:
    """A metric by its name, or a class of the user's with `reset`, `update` and `result`."""

    def __init__(self, name: str = "user_metric", metric_cls: Any = None, **kwargs: Any) -> None:
        self.name, self.metric_cls, self.kwargs = name, metric_cls, kwargs


class _Measure(Protocol):
    def reset(self) -> None: ...

    def update(self, preds: Any, labels: Any) -> None: ...

    def result(self) -> float: ...


def evaluation_of(metric: Any, loader: Any) -> Callable[[Any], float]:
    """Return a function of a model that measures it over (inputs, labels)."""
    measure = _open(metric)

    def evaluate(model: Any) -> float:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        names = [value.name for value in session.get_inputs()]
        measure.reset()
        for item in loader:
            if not isinstance(item, tuple | list) or len(item) != 2:
                raise DataError("eval_dataloader gives (inputs, labels), one after the other.")
            inputs, labels = item
            found = session.run(None, feed_of(inputs, names))
            measure.update(found, labels if isinstance(labels, list) else [labels])
        return float(measure.result())

    return evaluate


def _open(metric: Any) -> _Measure:
    if isinstance(metric, Metric):
        if metric.metric_cls is not None:
            made: _Measure = metric.metric_cls(**metric.kwargs)
            return made
        return _built_in(metric.name, metric.kwargs)
    if isinstance(metric, Mapping):
        if len(metric) != 1:
            raise RecipeError(
                "eval_metric has one metric here; combine several in an eval_func of yours."
            )
        [(name, options)] = metric.items()
        if not isinstance(options, Mapping):
            options = {} if name != "topk" else {"k": options}
        return _built_in(name, options)
    if not all(hasattr(metric, name) for name in ("reset", "update", "result")):
        raise RecipeError(
            "eval_metric is a dict as {'topk': 1}, a Metric, or has reset, update and result; "
            f"{metric!r} is none of these."
        )
    return metric  # type: ignore[no-any-return]  # a metric of the user's, whose methods are there


def _built_in(name: str, options: Mapping[str, Any]) -> _Measure:
    if name not in _BUILT_IN:
        raise RecipeError(
            f"the metric {name!r} has no form here; give an eval_func, or an object with reset, "
            f"update and result.{did_you_mean(name, _BUILT_IN)}"
        )
    each, known = _BUILT_IN[name], ("k",) if name == "topk" else ()
    unknown = [option for option in options if option not in known]
    if unknown:
        raise RecipeError(f"this metric has no option {unknown[0]!r}; leave it out.")
    return _Mean(partial(each, **options), np.sqrt if name == "RMSE" else float)


class _Mean:
    """The mean of a number for each sample."""

    def __init__(self, each: Callable[..., Array], of_mean: Callable[[float], float]) -> None:
        self._each, self._of_mean = each, of_mean
        self.reset()

    def reset(self) -> None:
        self._sum, self._count = 0.0, 0

    def update(self, preds: Any, labels: Any) -> None:
        each = self._each(_array(preds), _array(labels))
        self._sum, self._count = self._sum + float(each.sum()), self._count + each.size

    def result(self) -> float:
        return float(self._of_mean(self._sum / max(self._count, 1)))


def _array(values: Any) -> Array:
    """Return the one array of a list, or the values as one."""
    return np.asarray(values[0] if isinstance(values, list) and len(values) == 1 else values)


def _is_among_top(outputs: Array, labels: Array, k: int = 1) -> Array:
    scores = outputs.reshape(-1, outputs.shape[-1])
    wanted = labels.reshape(len(scores), -1)
    # Labels may be one-hot.
    classes = wanted.argmax(axis=1) if wanted.shape[1] > 1 else wanted[:, 0]
    return np.asarray((scores.argsort()[:, -k:] == classes[:, None]).any(axis=1))


def _is_right(outputs: Array, labels: Array) -> Array:
    if outputs.shape == labels.shape:  # classes, and no scores of them
        return np.asarray(outputs == labels)
    return _is_among_top(outputs, labels)


def _error(outputs: Array, labels: Array) -> Array:
    return np.asarray(np.abs(outputs.astype(np.float64).reshape(-1) - labels.reshape(-1)))


def _squared_error(outputs: Array, labels: Array) -> Array:
    return np.square(_error(outputs, labels))


_BUILT_IN: dict[str, Callable[..., Array]] = {
    "topk": _is_among_top,
    "Accuracy": _is_right,
    "MSE": _squared_error,
    "MAE": _error,
    "RMSE": _squared_error,
}
"""The name of a metric -> its number for each sample, of outputs and labels."""
