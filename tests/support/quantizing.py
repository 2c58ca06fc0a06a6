"""Models quantized by a recipe of a few fields."""

import bitwright
from bitwright import Recipe
from support.models import make_samples


def quantize(model, samples=None, **fields):
    """Quantize by a recipe with these fields, on seeded samples unless others are given."""
    return quantize_on(make_samples(model) if samples is None else samples, model, **fields)


def quantize_on(samples, model, **fields):
    """Quantize by a recipe with these fields, on just these samples: None for no data."""
    recipe = Recipe(name="test", **fields)
    return bitwright.quantize(model, data=samples, recipe=recipe, holdout=False, progress=False)
