"""`nncf.errors`: what NNCF raises for options and models that it does not take."""

from __future__ import annotations

from bitwright.errors import RecipeError


class ValidationError(RecipeError):
    """Options contradict each other, or an ignored scope names what the model does not have."""


class ParameterNotSupportedError(RecipeError):
    """A value of an option that models for ONNX Runtime cannot have."""


class InvalidGroupSizeError(RecipeError):
    """Groups of a size that the weights cannot have."""
