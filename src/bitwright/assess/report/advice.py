"""Suggested fixes: rules that turn findings into a sentence and a command."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bitwright.assess.report.subject import ReportSubject
from bitwright.assess.report.views import TensorView
from bitwright.assess.verdict import accuracy_of, may_ship, verdict_lines
from bitwright.plan import FALLBACK_NAMES
from bitwright.recipe import RECIPES, MinMax, Recipe

_MAX_CHANNEL_RATIO = 8.0
"""Times the middle channel from which one scale for a weight wastes three bits of most channels."""
_MIN_USED_RANGE = 0.25
"""Share of the range that holds nearly all values, below which two bits are lost to outliers."""
_MAX_CLIPPED = 0.01


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to try: what, why, and the command that does it."""

    title: str
    why: str
    command: str | None = None


Rule = Callable[[ReportSubject], Advice | None]


def advise(subject: ReportSubject) -> list[Advice]:
    """Return what to try, the most promising first; one entry at least."""
    found = [advice for rule in RULES if (advice := rule(subject)) is not None]
    return found or [_hold_against_limits(subject)]


def _hold_against_limits(subject: ReportSubject) -> Advice:
    """What comes after a report that finds nothing to mend."""
    models = [subject.float_name, subject.quantized_name]
    if subject.verdict().level == "float":
        why = "No node is quantized; this says what each way to quantize it would bring."
        return Advice("See what can be done", why, shlex.join(["bitwright", models[0]]))
    return Advice(
        "Nothing to fix",
        "No node stands out, no range is far too wide or too narrow, and the outputs are close "
        "to float. The gate for CI holds the model against limits of yours.",
        f"{shlex.join(['bitwright', 'check', *models])} {subject.data_option or '--data PATH'}",
    )


def say_verdict(subject: ReportSubject) -> list[str]:
    """Return whether the model may be shipped, whether it is faster, and what to do next."""
    first, tuning = advise(subject)[0], subject.tuning
    ship = may_ship(subject.verdict().level, subject.samples, subject.target)
    ship = ship if tuning is None or ship.startswith("no, ") else tuning["ship"]
    step = first.title if first.command is None else f"{first.title}: {first.command}"
    return verdict_lines(ship, subject.clock or subject.untimed, step)


# Rules ----------------------------------------------------------------------------------------


def use_real_data(subject: ReportSubject) -> Advice | None:
    """Ranges of random data are ranges of nothing."""
    if subject.plan is None or not subject.plan.random_data:
        return None
    return Advice(
        "Calibrate on real data",
        "Ranges were chosen on random data, so every figure here is about random data too.",
        _words(subject, data="--data PATH"),
    )


def fall_back_on_nodes(subject: ReportSubject) -> Advice | None:
    """What was tried out and measured comes before what only looks promising."""
    fix = subject.suggested_fix
    if fix is None or not fix.proposal.nodes:
        return None
    proposal = fix.proposal
    many = "this node" if len(proposal.nodes) == 1 else f"these {len(proposal.nodes)} nodes"
    words = ["bitwright", "apply", fix.plan_name, subject.float_name, "-o", "better.onnx"]
    recipe = proposal.plan.recipe
    learns = recipe.fine_tune is not None
    rounds = recipe.mode == "weight-only" and recipe.weights.needs_data
    given = f" {subject.data_option or '--data PATH'}" if learns or rounds else ""
    sentence = proposal.describe().replace(" -> ", " → ")
    names = "The node is" if len(proposal.nodes) == 1 else "The nodes are"
    why = f"Measured: {sentence}. {names} {_listed(proposal.nodes)}."
    if not proposal.reached:
        why += " More of it takes more nodes: the loss is spread over many of them."
    return Advice(
        f"Fall back to {FALLBACK_NAMES[proposal.to]} for {many}", why, shlex.join(words) + given
    )


def ask_for_sensitivity(subject: ReportSubject) -> Advice | None:
    """Errors of nodes alone do not say what reaches the outputs; trying does."""
    recipe = subject.recipe
    if subject.suggested_fix is not None or recipe is None or _is_good(subject):
        return None
    data = subject.data_option or "--data PATH"
    name = shlex.quote(subject.float_name)
    plan = subject.plan_name or "plan.json"
    words = f"bitwright sensitivity {name} --plan {shlex.quote(plan)} {data} -o better.json"
    if subject.plan is None:
        parts = [f"bitwright plan {name} -o plan.json", data, *_recipe_option(recipe, None)]
        words = f"{' '.join(parts)} && {words}"
    return Advice(
        "Find the fewest nodes that need a fallback",
        "Tries every node out, measures what reaches the outputs, and writes a plan in which the "
        "most sensitive few fall back; this report does it with --sensitivity.",
        words,
    )


def leave_worst_float(subject: ReportSubject) -> Advice | None:
    """A few nodes that lose much more than the others are cheap to leave float.

    Only of a model that says nothing of how it was made: else sensitivity finds those that matter.
    What a node loses on its own may hardly reach the outputs, as before a softmax of attention.
    """
    if _is_good(subject) or subject.suggested_fix is not None or subject.recipe is not None:
        return None
    names = [subject.nodes[place].measured.name for place in subject.outstanding()]
    if not names:
        return None
    options = [f"--exclude {shlex.quote(name)}" for name in dict.fromkeys(names)]
    many = "this node" if len(names) == 1 else f"these {len(names)} nodes"
    why = (
        f"Fed with float values, {_listed(names)} {'loses' if len(names) == 1 else 'lose'} far "
        "more than the other nodes do."
    )
    return Advice(f"Leave {many} float", why, _words(subject, *options))


def scale_each_channel(subject: ReportSubject) -> Advice | None:
    """One scale for channels of very different size rounds the small ones to nothing."""
    recipe = subject.recipe
    if recipe is not None and (recipe.per_channel or recipe.limits is not None):
        return None
    weight = _most_uneven(subject)
    if weight is None:
        return None
    return Advice(
        "Give each channel of a weight its own scale",
        f"{_uneven(weight)}, and they share one scale.",
        _words(subject, "--set per_channel=true"),
    )


def equalize_channels(subject: ReportSubject) -> Advice | None:
    """Where hardware wants one scale a weight, consecutive weights can share their sizes."""
    recipe = subject.recipe
    if recipe is None or recipe.limits is None or recipe.equalize is not None:
        return None
    weight = _most_uneven(subject)
    if weight is None:
        return None
    return Advice(
        "Equalize channels between layers",
        f"{_uneven(weight)}, and this recipe has one scale for each weight.",
        _words(subject, "--equalize"),
    )


def cut_off_outliers(subject: ReportSubject) -> Advice | None:
    """Min-max ranges follow the one largest value ever seen."""
    recipe = subject.recipe
    if _is_good(subject) or not _calibrates(recipe):
        return None
    if recipe is not None and (not isinstance(recipe.ranges, MinMax) or recipe.limits is not None):
        return None
    wasted = {
        view.name: share
        for view in _activations(subject)
        if (share := _used_by_most(view)) is not None and share < _MIN_USED_RANGE
    }
    if not wasted:
        return None
    name = min(wasted, key=lambda key: wasted[key])
    many = "1 activation" if len(wasted) == 1 else f"{len(wasted)} activations"
    return Advice(
        "Cut off outliers",
        f"{many} {'has' if len(wasted) == 1 else 'have'} 99.9 % of the values in less than a "
        f"quarter of the range; in {name} it is {wasted[name]:.1%}.".replace("%.", " %."),
        _words(subject, "--ranges mse"),
    )


def keep_large_values(subject: ReportSubject) -> Advice | None:
    """Ranges that cut off more than the rarest values distort what is left."""
    recipe = subject.recipe
    if recipe is None or not _calibrates(recipe) or recipe.limits is not None:
        return None
    clipped = {v.name: v.clipped for v in _activations(subject) if (v.clipped or 0) > _MAX_CLIPPED}
    if not clipped:
        return None
    name = max(clipped, key=lambda key: clipped[key] or 0)
    share = f"{clipped[name]:.1%}".replace("%", " %")
    if isinstance(recipe.ranges, MinMax):
        why = f"{share} of {name} lie outside what calibration saw: its data is not like this."
        return Advice("Calibrate on more varied data", why, _words(subject, data="--data PATH"))
    why = f"{share} of {name} lie outside its range and are cut off."
    return Advice("Keep large values", why, _words(subject, "--ranges minmax"))


def smooth_products(subject: ReportSubject) -> Advice | None:
    """Transformers have a few channels of huge activations, which weights can take over."""
    recipe = subject.recipe
    if _is_good(subject) or not _calibrates(recipe):
        return None
    if recipe is not None and (recipe.smooth is not None or recipe.limits is not None):
        return None
    products = [n for n in subject.nodes if n.quantized and n.measured.op in ("MatMul", "Gemm")]
    if len(products) < 4 or len(products) < 0.1 * len(subject.nodes):
        return None
    outlying = [
        node for node in products
        if any(
            (view := subject.tensors.get(key)) is not None
            and view.role == "activation"
            and (share := _used_by_most(view)) is not None
            and share < _MIN_USED_RANGE
            for label, key in node.tensors
            if label.startswith("input")
        )
    ]  # fmt: skip
    if not outlying:
        return None
    return Advice(
        "Let weights take over large activations",
        f"{len(outlying)} of {len(products)} matrix products read activations with outliers, as "
        "transformers do; SmoothQuant moves them into the weights.",
        _words(subject, "--set smooth={}"),
    )


def store_more_bits(subject: ReportSubject) -> Advice | None:
    """Low-bit weights are the first to blame for a poor model."""
    recipe = subject.recipe
    if _is_good(subject) or recipe is None:
        return None
    blocks = recipe.mode == "weight-only"
    bits = recipe.weights.bits if blocks else recipe.weight.bits
    if bits >= 8 or not (blocks or recipe.weight.is_integer):
        return None
    return Advice(
        "Store weights in 8 bits",
        f"Weights have {bits} bits now, which is {2**bits} levels.",
        _words(subject, recipe="int8-weights") if blocks else _words(subject, "--set weight=int8"),
    )


def use_sixteen_bits(subject: ReportSubject) -> Advice | None:
    """When no single node is to blame, all activations may need more bits."""
    recipe = subject.recipe
    if _is_good(subject) or not _calibrates(recipe):
        return None
    if recipe is not None and (recipe.activation.bits > 8 or recipe.limits is not None):
        return None
    return Advice(
        "Give activations 16 bits",
        "It costs speed, and keeps the size: weights stay in 8 bits.",
        _words(subject, recipe="a16w8"),
    )


def find_what_is_slow(subject: ReportSubject) -> Advice | None:
    """A quantized model that is slower has ops that fell back to float, or slow integer kernels."""
    if subject.clock is None or not subject.clock.is_slower:
        return None
    return Advice(
        "Find out what is slow",
        "The quantized model takes longer than the prepared float one: ops that are not fused, or "
        "that this processor has no integer kernel for.",
        shlex.join(["bitwright", "bench", subject.float_name, subject.quantized_name]),
    )


def keep_what_is_smaller(subject: ReportSubject) -> Advice | None:
    """Pairs take bytes, too: of a model with few weights more than 8-bit weights save."""
    larger = subject.quantized_bytes > 1.05 * subject.float_bytes
    if not larger or (subject.clock is not None and subject.clock.is_faster):
        return None
    return Advice(
        "Keep the float model",
        "The quantized one is larger and not known to be faster: its pairs and scales take more "
        "bytes than its weights save.",
    )


RULES: tuple[Rule, ...] = (
    use_real_data,
    fall_back_on_nodes,
    # What costs nothing at run time comes before nodes that are computed in float.
    scale_each_channel,
    equalize_channels,
    # A node's own error does not say what reaches the outputs: measuring comes before guessing.
    ask_for_sensitivity,
    leave_worst_float,
    cut_off_outliers,
    keep_large_values,
    smooth_products,
    store_more_bits,
    use_sixteen_bits,
    find_what_is_slow,
    keep_what_is_smaller,
)


# What the rules ask -----------------------------------------------------------------------------


def _is_good(subject: ReportSubject) -> bool:
    good = accuracy_of(subject.outputs) in ("good", "unknown")
    return good or subject.verdict().level in ("float", "unknown")


def _calibrates(recipe: Recipe | None) -> bool:
    return recipe is None or recipe.mode == "static"


def _activations(subject: ReportSubject) -> Iterator[TensorView]:
    return (view for view in subject.tensors.values() if view.role == "activation")


def _most_uneven(subject: ReportSubject) -> TensorView | None:
    """Return the weight of one scale whose channels differ most, if they differ much."""
    weights = (v for v in subject.tensors.values() if v.role == "weight" and v.scale.size == 1)
    most = max(weights, key=lambda view: view.channel_ratio, default=None)
    return None if most is None or most.channel_ratio <= _MAX_CHANNEL_RATIO else most


def _uneven(weight: TensorView) -> str:
    assert weight.peaks is not None
    largest, ratio = int(weight.peaks.argmax()), weight.channel_ratio
    return f"Channel {largest} of {weight.name} is {ratio:.0f} times as large as the middle one"


def _used_by_most(view: TensorView) -> float | None:
    """Return the share of the range between the 0.05 % smallest and largest values."""
    histogram, limits = view.histogram, view.range
    if histogram is None or limits is None or histogram.finite < 1000:
        return None
    total = histogram.counts.sum()
    reached = histogram.counts.cumsum()
    first = int((reached <= 0.0005 * total).sum())
    last = int((reached < 0.9995 * total).sum())
    width = (histogram.high - histogram.low) / histogram.counts.size
    whole = limits[1] - limits[0]
    return min((last - first + 1) * width / whole, 1.0) if whole > 0 else None


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:3])
    if len(names) > len(shown):
        return f"{', '.join(shown)} and {len(names) - len(shown)} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]


def _words(
    subject: ReportSubject, *options: str, recipe: str | None = None, data: str | None = None
) -> str:
    """Return the command that quantizes the same model with these options on top."""
    given = data if data is not None else subject.data_option or "--data PATH"
    parts = [
        "bitwright quantize",
        shlex.quote(subject.float_name),
        "-o better.onnx",
        *([given] if _calibrates(subject.recipe) else []),
        *_recipe_option(subject.recipe, recipe),
        *options,
    ]
    return " ".join(parts)


def _recipe_option(used: Recipe | None, instead: str | None) -> list[str]:
    if instead is not None:
        return [f"--recipe {instead}"]
    if used is None:
        return []
    if RECIPES.get(used.name) == used:
        return [f"--recipe {used.name}"]
    return ["--recipe recipe.json"]  # the page offers it for saving
