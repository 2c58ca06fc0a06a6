"""int8 activations: which recipes write them, and as what on the CPU of this machine."""

from __future__ import annotations

from bitwright.numerics.types import INT8
from bitwright.recipe.value import Recipe
from bitwright.targets import find_target
from bitwright.targets.host import CLASSES, detect_cpu, on_host


def is_of_host(target: str) -> bool:
    """Return whether a target is the CPU of this machine, so that its time is measured here.

    >>> is_of_host("cpu"), is_of_host("qualcomm-htp")
    (True, False)
    """
    return detect_cpu() in on_host(find_target(target)).cpus


def keep_signed(recipe: Recipe) -> Recipe:
    """Return a recipe that was fitted to a target: int8 activations that stay so do on any host."""
    return _with_unsigned(recipe, unsigned=False)


def settle_for_host(recipe: Recipe, cpu: str | None = None) -> Recipe:
    """Return a recipe that has no target as the CPU of this machine, or another, wants it.

    Recipes whose pairs are placed for accelerators (`place.isolated`) stay as they are.
    """
    return _with_unsigned(recipe, unsigned=(cpu or detect_cpu()) in ("avx2", "vnni"))


def _with_unsigned(recipe: Recipe, *, unsigned: bool) -> Recipe:
    place = recipe.place
    if place.isolated or place.unsigned_activations is not None or not writes_signed(recipe):
        return recipe
    return recipe.replace(place={"unsigned_activations": unsigned})


def writes_signed(recipe: Recipe) -> bool:
    """Return whether activations are int8 in a format that ONNX Runtime has kernels for."""
    return (
        recipe.mode == "static"
        and recipe.activation == INT8
        and not recipe.output_format.vendor_ops
    )


def with_standard_purpose(recipe: Recipe, target: str | None) -> Recipe:
    """Return the recipe that a target has of its own, with integers unless they cost time.

    That is for CPUs; on hardware of which no costs are known integers are taken wherever it takes
    them. A target of several kinds of CPU counts by the plainest of them, whose integers gain
    least.

    >>> with_standard_purpose(Recipe(), "cpu-any").place.cpu
    'x86-avx2'
    >>> with_standard_purpose(Recipe(), "qualcomm-htp").place.purpose
    'size'
    """
    hardware = find_target("cpu" if target is None else target)
    if not recipe.can_be_placed or not hardware.cpus:
        return recipe
    cpu = recipe.place.cpu if hardware.host else CLASSES[hardware.cpus[0]]
    return recipe.replace(place={"purpose": "balanced", "cpu": cpu})
