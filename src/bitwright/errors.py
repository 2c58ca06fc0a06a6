"""The exceptions a user can meet: one root, few children, each message with its remedy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "AlreadyQuantizedError",
    "ArgumentError",
    "BitwrightError",
    "ClusterError",
    "DataError",
    "EmptyDataError",
    "MissingPackageError",
    "ModelError",
    "NothingQuantizedError",
    "OutOfMemoryError",
    "OutputError",
    "PlanError",
    "RecipeError",
    "TargetError",
    "did_you_mean",
]


class BitwrightError(Exception):
    """Anything that Bitwright refuses to do, in one sentence.

    A remedy that is written otherwise on the command line is given twice: `remedy` ends the
    sentence of the exception, `command` the one that the `bitwright` command prints.

    >>> error = DataError("no data", remedy="give data", command="give --data PATH")
    >>> str(error), error.for_command
    ('no data; give data.', 'no data; give --data PATH.')
    """

    def __init__(
        self, sentence: object = "", *, remedy: str | None = None, command: str | None = None
    ) -> None:
        super().__init__(sentence if remedy is None else f"{sentence}; {remedy}.")
        self._for_command = None if command is None else f"{sentence}; {command}."

    @property
    def for_command(self) -> str:
        """The sentence with the remedy in the words of the command line."""
        return str(self) if self._for_command is None else self._for_command


class ArgumentError(BitwrightError, TypeError):
    """A function got an option that it does not have, or a value of the wrong kind.

    >>> import bitwright
    >>> bitwright.inspect(models="digits.onnx")
    Traceback (most recent call last):
    bitwright.errors.ArgumentError: inspect has no option 'models'. Did you mean 'model'?
    """


class ModelError(BitwrightError):
    """The model cannot be read, run or quantized.

    >>> import bitwright
    >>> bitwright.inspect("nowhere.onnx")
    Traceback (most recent call last):
    bitwright.errors.ModelError: there is no file 'nowhere.onnx'; check the path.
    """


class NothingQuantizedError(ModelError):
    """Every node of the model stays float; the message says why.

    >>> import bitwright
    >>> recipe = {"select": {"op_types": ["LSTM"]}}
    >>> bitwright.quantize(bitwright.load_demo().model_path, recipe=recipe, data="random")
    ... # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bitwright.errors.NothingQuantizedError: nothing in this model was quantized (...
    """


class AlreadyQuantizedError(ModelError):
    """The model has quantizers or integer operators, and a float one is wanted.

    >>> issubclass(AlreadyQuantizedError, ModelError)
    True
    """


class DataError(BitwrightError):
    """The calibration data is missing, malformed or does not fit the model.

    >>> import bitwright
    >>> bitwright.quantize(bitwright.load_demo().model_path, data=[])
    Traceback (most recent call last):
    bitwright.errors.EmptyDataError: the calibration data is empty; give at least one sample.
    """


class EmptyDataError(DataError):
    """The calibration data has no sample.

    >>> issubclass(EmptyDataError, DataError)
    True
    """


class RecipeError(BitwrightError):
    """The recipe asks for something unknown or contradictory.

    >>> import bitwright
    >>> bitwright.load_recipe("int9")
    Traceback (most recent call last):
    bitwright.errors.RecipeError: unknown recipe 'int9'. Did you mean 'int8'?
    """


class PlanError(BitwrightError):
    """A saved plan does not fit the model, or was edited into something impossible.

    >>> import bitwright
    >>> bitwright.QuantPlan.load("nowhere.json")
    Traceback (most recent call last):
    bitwright.errors.PlanError: cannot read the plan 'nowhere.json': No such file or directory.
    """


class TargetError(BitwrightError):
    """The target is unknown, or cannot run what the recipe asks for.

    >>> import bitwright
    >>> bitwright.load_recipe(target="npu")
    Traceback (most recent call last):
    bitwright.errors.TargetError: unknown target 'npu'. Did you mean 'npu-cnn' or 'npu-transformer'?
    """


class ClusterError(BitwrightError):
    """A cluster cannot be reached, or its workers die whatever they are given.

    >>> issubclass(ClusterError, BitwrightError)
    True
    """


class OutputError(BitwrightError):
    """The result cannot be written where it was asked to go.

    >>> from bitwright.graph import check_destination
    >>> check_destination("nowhere/q.onnx")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bitwright.errors.OutputError: there is no folder 'nowhere' to write 'q.onnx' in; create it or...
    """


class OutOfMemoryError(BitwrightError, MemoryError):
    """The machine, or the limit of this process, has less memory than the job needs.

    >>> issubclass(OutOfMemoryError, MemoryError)
    True
    """


class MissingPackageError(BitwrightError):
    """An optional package is needed for this and is not installed.

    >>> issubclass(MissingPackageError, BitwrightError)
    True
    """


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the closest known word, else a list of what is known.

    >>> did_you_mean("percentil", ["minmax", "percentile"])
    " Did you mean 'percentile'?"
    >>> did_you_mean("zzz", ["minmax", "percentile"])
    ' Known: minmax, percentile.'
    >>> did_you_mean("npu", ["cpu", "npu-cnn", "npu-transformer"])
    " Did you mean 'npu-cnn' or 'npu-transformer'?"
    """
    word, names = str(given), sorted(known)
    close = get_close_matches(word, names, n=1, cutoff=0.85) or _beginning_with(word, names)
    close = close or get_close_matches(word, names, n=1, cutoff=0.6)
    if not close:
        by_lower = {name.lower(): name for name in names}
        close = [
            by_lower[name] for name in get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
        ]
    if close:
        return f" Did you mean {' or '.join(map(repr, close))}?"
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f" Known: {shown}." if names else ""


def _beginning_with(word: str, names: Iterable[str]) -> list[str]:
    """Return the few names of which a word is the beginning, as `npu` is of `npu-cnn`."""
    found = [name for name in names if len(word) > 2 and name.startswith(word)]
    return found if len(found) <= 3 else []
