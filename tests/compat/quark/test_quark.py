"""The names of `quark.onnx`."""

from __future__ import annotations

import pytest

from bitwright.compat import quark
from bitwright.errors import RecipeError


def test_steps_that_do_not_exist_say_so():
    with pytest.raises(RecipeError, match="QuarotConfig is not supported"):
        from bitwright.compat.quark import QuarotConfig  # noqa: F401
    with pytest.raises(AttributeError):
        quark.NoSuchThing  # noqa: B018
