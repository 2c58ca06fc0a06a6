"""Rows of int8 for prompts beside n-bit products for single tokens, in one model.

From three or four tokens on, int8 products with one scale per token are faster than those of 4
bits, whose time for a prompt is more than float's; at one token they read twice as many bytes.
"""

from __future__ import annotations

from dataclasses import replace

from bitwright import graph
from bitwright.data import InputSpec, is_tokens
from bitwright.errors import BitwrightError, RecipeError
from bitwright.graph.branches import choose_by_size
from bitwright.jobs.calibration import Calibration, Evaluation
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Planned, Written, open_quantized, sign_model
from bitwright.jobs.placing import leave_slower_float
from bitwright.jobs.static import make_static_plan
from bitwright.jobs.weight_only.answers import compare_answers
from bitwright.recipe import named_recipe
from bitwright.run import Session
from bitwright.support.wording import show_bytes

OUTPUT = "matmul-nbits-and-rows"
MIN_PROMPT = 4
"""Tokens from which on rows of int8 are faster (x86 with VNNI, layers as wide as SmolLM2-135M's:
0.35, 0.39 and 0.48 of float's time for 1, 4 and 64 tokens; 4 bits 0.28, 0.46 and 1.49)."""


def with_rows(prepared: Prepared, written: Written, evaluation: Evaluation) -> Written:
    """Return a model that takes int8 rows from a few tokens on.

    Its accuracy is that of the n-bit products: samples are prompts, and would show the rows alone.
    """
    tensor, width = _find_tokens(prepared.inputs)
    compared = written.compared
    if compared is None and evaluation and written.session is not None:
        [compared] = compare_answers(prepared, (written,), evaluation.samples)
    before = graph.written_size(written.model)
    try:
        rows = leave_slower_float(replace(prepared, recipe=named_recipe("int8-dynamic")))
        plan = make_static_plan(rows, Calibration(progress=False))
        many = open_quantized(rows, Planned(plan), checked=False).model
    except BitwrightError as error:
        raise RecipeError(f"int8 rows for prompts cannot be made of this model: {error}") from error
    model = choose_by_size(graph.clone_model(written.model), many, tensor, MIN_PROMPT * width)
    sizes = f"{show_bytes(graph.written_size(model))} in place of {show_bytes(before)}"
    note = (
        f"prompts of {MIN_PROMPT} tokens and more are computed in int8 rows, which stand beside "
        f"the n-bit products: {sizes}; the accuracy is that of the latter, which lose more"
    )
    written = replace(written, plan=written.plan.with_notes([note]), model=model, compared=compared)
    sign_model(model, written.plan)
    if written.session is None:
        return written
    return replace(written, session=Session(model, providers=prepared.providers))


def _find_tokens(specs: tuple[InputSpec, ...]) -> tuple[str, int]:
    """Return the input that has a row for each token, and the elements of a row."""
    for spec in specs:
        width = 1 if is_tokens(spec) else spec.shape[-1] if spec.shape else None
        if isinstance(width, int) and (is_tokens(spec) or spec.name == "inputs_embeds"):
            return spec.name, width
    raise RecipeError(
        "int8 rows for prompts are for language models, and no input of this one takes tokens; "
        "leave --prompts (weights.output) out."
    )
