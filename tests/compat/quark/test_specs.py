"""Number types by Quark's names."""

from __future__ import annotations

from bitwright.compat import quark
from bitwright.numerics.types import QTYPES


def test_every_spec_has_its_number_type():
    specs = [getattr(quark, name) for name in quark.__all__ if name.endswith("Spec")]
    types = {spec().data_type.name for spec in specs}
    assert types <= set(QTYPES) and len(types) == 18
