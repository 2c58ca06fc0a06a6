"""Rotation as a step of a weight-only job: always, or where the rounded model loses less by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bitwright import graph
from bitwright.errors import PlanError
from bitwright.jobs.calibration import unseen_samples
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Written
from bitwright.jobs.weight_only.answers import answer_loss, compare_answers, show_figures
from bitwright.jobs.weight_only.work import WeightWork
from bitwright.plan import Rotation
from bitwright.support.wording import counted, show_percent

SEED = 0
"""One rotation is as good as another."""


def choose_rotation(
    work: WeightWork, write: Callable[[WeightWork], Written] | None
) -> tuple[Prepared, Rotation | None]:
    """Return the model, rotated as its recipe asks, and what the plan has to say about that.

    `write` rounds a model without data; None: it is too large to be run. With "auto" it does so
    for both models, and the one that loses less of its float answers is kept.
    """
    prepared, calibration = work.prepared, work.calibration
    asked = prepared.recipe.weights.rotate
    if asked is False:
        return prepared, None
    rotated, rotation = _rotate(prepared, SEED)
    if rotation is None or asked is True:
        return rotated, rotation
    if write is None:
        return _with_note(prepared, "not rotated: too large a model to try both ways"), None
    samples = () if calibration.is_random else unseen_samples(prepared, calibration).samples
    if not samples:
        return _with_note(prepared, "not rotated: there are no real samples to try it on"), None
    (plain,) = compare_answers(prepared, (write(work),), samples)
    (other,) = compare_answers(rotated, (write(replace(work, prepared=rotated)),), samples)
    before, after = answer_loss(plain.judgement), answer_loss(other.judgement)
    note = (
        f"{'rotated' if after < before else 'not rotated'}: rounded to nearest, without data, "
        f"a rotation changes the loss from {show_percent(before)} to {show_percent(after)} %"
        f"{show_figures(plain.judgement, other.judgement)} on {counted(len(samples), 'sample')}"
    )
    if after < before:
        return _with_note(rotated, note), rotation
    return _with_note(prepared, note), None


def apply_rotation(prepared: Prepared, rotation: Rotation | None) -> Prepared:
    """Return the model rotated as a plan says."""
    if rotation is None:
        return prepared
    rotated, found = _rotate(prepared, rotation.seed)
    if found != rotation:
        raise PlanError(
            f"the plan rotates {_describe(rotation)}, and in this model there are "
            f"{_describe(found)} to rotate; make the plan again for it."
        )
    return rotated


def _rotate(prepared: Prepared, seed: int) -> tuple[Prepared, Rotation | None]:
    from bitwright.equalize.rotation import rotate_model  # few recipes ask for it

    model = graph.clone_model(prepared.model)
    done = rotate_model(model, seed, caches=prepared.recipe.weights.rotate_caches)
    notes = [*prepared.notes, *done.notes]
    if done.rotation is None:
        return replace(prepared, notes=tuple(notes)), None
    recipe = prepared.recipe
    if done.untied and recipe.weights.embeddings is None:
        # A table that a head shares is stored in blocks; a copy in float would be much larger.
        recipe = recipe.replace(weights={"embeddings": True})
        notes.append("tables of embeddings are quantized, as the shared one would have been")
    return replace(prepared, model=model, recipe=recipe, notes=tuple(notes)), done.rotation


def _with_note(prepared: Prepared, note: str) -> Prepared:
    return replace(prepared, notes=(*prepared.notes, note))


def _describe(rotation: Rotation | None) -> str:
    streams, attentions = (
        (0, 0) if rotation is None else (len(rotation.streams), rotation.attentions)
    )
    return f"{counted(streams, 'residual stream')} and {counted(attentions, 'attention')}"
