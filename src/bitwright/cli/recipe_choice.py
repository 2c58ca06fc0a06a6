"""The options that choose a recipe and change its fields."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from bitwright.cli.groups import complete_recipe, complete_target, completing, option, switch

if TYPE_CHECKING:
    from bitwright.recipe import Recipe

Prompts = StrEnum("Prompts", ["fast"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChoice:
    """A recipe by its name, its file or its target, with `--set` and its short forms."""

    recipe: str | None = option(
        "NAME|FILE", "A name from 'bitwright recipes', or a file.", autocompletion=complete_recipe
    )
    target: str | None = option(
        "NAME", "Where the model will run; cpu if not given.", autocompletion=complete_target
    )
    format: str | None = option(
        "NAME",
        "qdq: float ops between Q/DQ pairs (the default). qoperator: integer ops.",
        autocompletion=completing("qdq", "qoperator"),
    )
    dynamic: bool = switch(
        "Quantize activations at every run; needs no data. Alone it means the recipe int8-dynamic."
    )
    dynamic_scale: str | None = option(
        "token|tensor",
        "With --dynamic: what has one scale, measured at every run: each row of an activation (the "
        "default), or the whole tensor, as ONNX Runtime's own tool has it.",
        autocompletion=completing("token", "tensor"),
    )
    bits: float | None = option(
        "N",
        "Bits of a language model's weights. 8: --dynamic. 2 to 7, or an average such as 4.5, for "
        "which those that lose most get twice as many as the others: the recipe int4, or int4-rtn "
        "for a model without a cache and data. Beside a recipe of weights alone: its bits.",
    )
    prompts: Prompts | None = option(
        None,
        "fast: with --bits below 8, int8 weights stand beside those of fewer bits, and prompts are "
        "computed in them: 2 to 3 times faster, in a file of nearly three times the size.",
    )
    cache: str | None = option(
        "int8|int4",
        "Keep the keys and values of a language model in integers: a quarter of the memory and "
        "faster next tokens, but slower prompts. Alone it leaves all weights float.",
        autocompletion=completing("int8", "int4"),
    )
    ranges: str | None = option(
        "METHOD",
        "How activation ranges are chosen, such as minmax, mean-extremes, percentile, entropy or "
        "mse. Short for --set ranges.method=METHOD.",
        autocompletion=completing("minmax", "mean-extremes", "percentile", "entropy", "mse"),
    )
    exclude: list[str] | None = option(
        "NODE", "Leave this node float, or all that match re:...; repeatable."
    )
    block_nodes: str | None = option("A,B", "Leave these nodes float, as --exclude does.")
    block_ops: str | None = option("A,B", "Leave nodes of these op types float.")
    op_types: str | None = option("A,B", "Quantize only these op types.")
    keep_io: bool | None = option(
        None,
        "With --recipe float16 or bfloat16: inputs and outputs of the model stay float32 (the "
        "default), or not.",
        "--keep-io/--no-keep-io",
    )
    equalize: bool = switch(
        "First equalize the channels of consecutive weights, which helps recipes with one "
        "scale per tensor. Short for --set equalize={}."
    )
    bias_correction: str | None = option(
        "MODE",
        "Shift biases by what rounding adds to their layers: fast (from mean inputs) or "
        "sequential (layer by layer). Short for --set bias_correction=MODE.",
        autocompletion=completing("fast", "sequential"),
    )
    fine_tune: str | None = option(
        "METHOD",
        "Let weights learn after all scales are decided: adaround (up or down), adaquant (weights, "
        "biases and scales) or, for weights in blocks, signround (roundings and ranges). Needs "
        "torch. Short for --set fine_tune.method=METHOD.",
        autocompletion=completing("adaround", "adaquant", "signround"),
    )
    iterations: int | None = option(
        "N", "With --fine-tune: steps for each segment (1000; signround 200); more take longer."
    )
    fix_shape: list[str] | None = option(
        "NAME=SIZE",
        "Give an open dimension a size, as the NPU needs it: batch=1, or a whole input "
        "its shape: image=1x3x224x224; repeatable.",
    )
    encodings: Path | None = option(
        "FILE",
        "Take scales of tensors from an encodings file of AIMET or QNN; all others are observed.",
    )
    settings: list[str] | None = option(
        "KEY=VALUE",
        "Change any field of the recipe, such as per_channel=true, or ranges=percentile "
        "with --set ranges.percentile=99.9; repeatable.",
        "--set",
    )

    @property
    def effort(self) -> str | None:
        """The effort where none is asked for: None if the options say how to choose ranges."""
        said = (
            "recipe bits cache ranges settings bias_correction fine_tune encodings dynamic equalize"
        )
        return None if any(getattr(self, name) for name in said.split()) else "standard"

    def _bit_settings(self, chosen: Recipe) -> dict[str, str | float]:
        """Return the settings that `--bits` is short for."""
        from bitwright.errors import RecipeError
        from bitwright.recipe import ByLoss

        both = None if self.prompts is None else {"weights.output": "matmul-nbits-and-rows"}
        if (self.bits is None or (chosen.mode == "dynamic" and self.bits == 8)) and not both:
            return {}
        if chosen.mode != "weight-only":
            raise RecipeError(
                f"{'--prompts' if both else '--bits'} is for weights whose activations stay float, "
                f"and recipe {chosen.name!r} quantizes both; add --recipe int4, or set its types."
            )
        if self.bits is None:
            return {**(both or {})}
        bits, weights = int(self.bits), chosen.weights
        if self.bits == bits:
            given: dict[str, str | float] = {**(both or {}), "weights.bits": bits}
            if bits != weights.bits and isinstance(weights.mixed, ByLoss):
                # Half a bit more is too little for a head of fewer bits, and nothing beyond 8.
                given |= {"weights.mixed": "null", "weights.head_bits": 8}
            return given
        narrow = 2 if self.bits < 4 else 4
        return {
            **(both or {}),
            "weights.bits": narrow,
            "weights.head_bits": "null",
            "weights.mixed.by": "loss",
            "weights.mixed.average_bits": self.bits,
            "weights.mixed.wide_bits": 2 * narrow,
        }

    def words(self) -> str:
        """Return the options as they are typed."""
        from bitwright.cli.options import typed

        given = asdict(self)
        settings = given.pop("settings")
        return typed({**given, "set": settings})

    def file(self) -> Path | None:
        """Return the file of the recipe, if it is given by one and not by its name."""
        path = Path(self.recipe or "")
        return path if path.suffix else None

    def _name(self, model: Path | None, *, has_data: bool) -> str | None:
        """Return the recipe that is meant, by its name or by what is asked of it."""
        if self.recipe is not None:
            return self.recipe
        if self.dynamic or self.bits == 8:
            return "int8-dynamic"
        if self.bits is None:
            return None if self.cache is None else "int8-cache"
        from bitwright.jobs.weight_only.work import MAX_UNASKED, writes_samples

        own = model is not None and writes_samples(model, MAX_UNASKED)
        return "int4" if has_data or own else "int4-rtn"

    def _excluded(self) -> str | None:
        """Return the nodes that stay float as a list in JSON, or None where none are named."""
        nodes = [*(self.exclude or ()), *(self.block_nodes or "").split(",")]
        named = [node for node in nodes if node]
        return json.dumps(named) if named else None

    def load(self, model: Path | None = None, *, has_data: bool = True) -> Recipe:
        """Return the recipe that the options ask for, for a model where encodings are given."""
        import msgspec

        from bitwright.api import load_recipe
        from bitwright.cli.options import read_shapes
        from bitwright.cli.settings import change_recipe
        from bitwright.errors import RecipeError

        chosen = load_recipe(self._name(model, has_data=has_data), self.target)
        tuned = chosen.fine_tune
        learning = None if tuned is None else type(tuned).__struct_config__.tag
        if self.iterations is not None and self.fine_tune is None and learning is None:
            raise RecipeError(
                "--iterations says how long weights learn, and nothing asks them to; add "
                "--fine-tune adaround, adaquant or signround."
            )
        shapes = read_shapes(self.fix_shape or (), "--fix-shape")
        changes = {
            "format": self.format,
            "ranges.method": self.ranges,
            "select.exclude": self._excluded(),
            "select.exclude_op_types": self.block_ops,
            "float_io": None if self.keep_io is None else str(self.keep_io).lower(),
            "select.op_types": self.op_types,
            "mode": "dynamic" if self.dynamic and self.recipe is not None else None,
            "dynamic_scale": self.dynamic_scale,
            "cache": self.cache,
            "equalize": "{}" if self.equalize and chosen.equalize is None else None,
            "bias_correction": self.bias_correction,
            "fine_tune.method": None if self.fine_tune == learning else self.fine_tune,
            "fine_tune.iterations": self.iterations,
            "rewrite.fix_shapes": shapes and msgspec.json.encode(shapes).decode(),
        }
        given = [f"{key}={value}" for key, value in changes.items() if value is not None]
        given += [f"{key}={value}" for key, value in self._bit_settings(chosen).items()]
        return self._with_encodings(change_recipe(chosen, [*given, *(self.settings or ())]), model)

    def _with_encodings(self, made: Recipe, model: Path | None) -> Recipe:
        """Return the recipe with the ranges of a file of encodings, if one is given."""
        if self.encodings is None:
            return made
        from bitwright.jobs.encodings import channel_axes, read_overrides

        whole = model is not None and not model.is_dir()
        axes = channel_axes(model, made) if whole and made.cache is None else None
        read = read_overrides(
            self.encodings,
            activation_signed=made.activation.signed,
            axes=axes,
            weights=axes,
            cache=made.cache,
        )
        return made.replace(overrides={**read, **made.overrides})
