"""Errors that scripts written for ONNX Runtime's tool catch by the built-in types it raises."""

from __future__ import annotations

from bitwright.errors import BitwrightError, RecipeError

__all__ = ["InvalidSettingError", "NoOperatorQuantizersError"]


class InvalidSettingError(RecipeError, ValueError):
    """A setting that is refused, which ONNX Runtime's tool does with a ValueError.

    >>> issubclass(InvalidSettingError, ValueError)
    True
    """


class NoOperatorQuantizersError(BitwrightError, NotImplementedError):
    """Something needs a quantizer class of one operator, which Bitwright does not have.

    >>> issubclass(NoOperatorQuantizersError, NotImplementedError)
    True
    """
