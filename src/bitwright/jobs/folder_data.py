"""Calibration data for each model of a folder: a text for those that read it, or data by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright import graph
from bitwright.data import (
    AUDIO_SUFFIXES,
    IMAGE_SUFFIXES,
    AudioPreprocess,
    ImagePreprocess,
    InputSpec,
    Samples,
    ShapedData,
    TextData,
    fill_token_inputs,
    holds_files,
    is_cache,
    is_text,
)
from bitwright.data.audio import INPUTS
from bitwright.data.token_inputs import continued_by, fixed_length, folder_with, is_token_name
from bitwright.errors import DataError, ModelError, did_you_mean
from bitwright.jobs.opening import input_specs
from bitwright.run import Session

_TOKENIZER = "tokenizer.json"
_PREPROCESSOR = "preprocessor_config.json"
# Inputs that another model of the folder makes of a text, and its outputs: an encoder's, as optimum
# names them, and the embeddings of tokens where a model also reads images or audio.
_MADE_BY_MODELS = {
    "encoder_hidden_states": ("last_hidden_state", "encoder_hidden_states"),
    "inputs_embeds": ("inputs_embeds",),
}


@dataclass(frozen=True, slots=True)
class FolderData:
    """Data that was given for a folder of models, and what each of them can use of it."""

    root: Path
    models: tuple[str, ...]
    data: Any
    limit: int | None = None

    @classmethod
    def open(
        cls, root: Path, models: tuple[str, ...], data: Any, limit: int | None = None
    ) -> FolderData:
        """Return the data for the models; a text gets the tokenizer of the folder."""
        if _is_by_model(data):
            for name in data:
                if name not in models:
                    raise DataError(
                        f"data was given for {name!r}, which is no model of the folder."
                        f"{did_you_mean(name, models)}"
                    )
            found = {name: _with_tokenizer(_as_text(one), root) for name, one in data.items()}
            return cls(root, models, found, limit)
        return cls(root, models, _with_tokenizer(_as_text(data), root), limit)

    def for_model(self, name: str) -> tuple[Any, str | None]:
        """Return the data for a model, or why it can use none although some was given."""
        data = self.data
        if _is_by_model(data):
            if name not in data:
                return None, "the data has none for this model"
            return data[name], None
        specs = input_specs(graph.load_model(self.root / name))
        if isinstance(data, ShapedData) and isinstance(data.transform, AudioPreprocess):
            hears = any(spec.name in INPUTS for spec in specs)
            return (data, None) if hears else (None, "recordings do not fill its inputs")
        if not isinstance(data, TextData):
            return data, None
        plain = self._find_plain_decoder(specs)
        if plain is not None:
            return self._behind(plain, specs)
        unfilled = data.unfilled(specs)
        if not unfilled:
            return data, None
        reason = f"text does not fill its input {unfilled[0]}"
        maker = self._find_maker(data, unfilled)
        if maker is None:
            return None, reason
        samples = _samples_through(maker, data, specs, self.limit)
        return _tried(samples, f"{reason}, and {maker.name} makes none of it")

    def _find_maker(self, text: TextData, unfilled: Sequence[InputSpec]) -> _Maker | None:
        """Return the model of the folder that makes the one missing input of the text."""
        if len(unfilled) > 1 or unfilled[0].name not in _MADE_BY_MODELS:
            return None
        for name in self.models:
            model = graph.load_model(self.root / name)
            outputs = [value.name for value in model.graph.outputs]
            output = next((o for o in _MADE_BY_MODELS[unfilled[0].name] if o in outputs), None)
            # Images and audio besides the text are optional: there may be none of them.
            needed = [
                spec
                for spec in text.unfilled(input_specs(model))
                if spec.shape is None or all(isinstance(size, int) for size in spec.shape)
            ]
            if output is not None and not needed:
                return _Maker(name, model, unfilled[0].name, output)
        return None

    def _find_plain_decoder(self, specs: Sequence[InputSpec]) -> str | None:
        """Return the decoder without a cache that makes the one which these inputs go on from."""
        caches = [spec.name for spec in specs if is_cache(spec.name)]
        for name in self.models if caches else ():
            model = graph.load_model(self.root / name)
            outputs = [value.name or "" for value in model.graph.outputs]
            reads = any(is_cache(value.name or "") for value in model.graph.inputs)
            if not reads and all(continued_by(cache, outputs) for cache in caches):
                return name
        return None

    def _behind(self, plain: str, specs: Sequence[InputSpec]) -> tuple[Any, str | None]:
        """Return samples for a decoder with a cache, which the plain one fills."""
        model, (given, reason) = graph.load_model(self.root / plain), self.for_model(plain)
        if reason is not None:
            return None, f"its cache is that of {plain}, and {reason}"
        if isinstance(given, TextData):
            given = given.samples(input_specs(model), limit=self.limit)
        about = f"{given.description}, in the cache of {plain}"
        found = Samples(_samples_behind(model, given, specs), specs, description=about)
        return _tried(found, f"{plain} does not make its cache")


def _tried(samples: Samples, reason: str) -> tuple[Samples | None, str | None]:
    """Return samples that models make, or the reason why there are none."""
    try:
        next(iter(samples))
    except (DataError, ModelError) as error:
        return None, f"{reason} ({error})"
    return samples, None


class _Maker(NamedTuple):
    """A model that makes an input of another one of the text."""

    name: str
    model: ir.Model
    input: str
    output: str


def _samples_through(
    maker: _Maker, text: TextData, specs: Sequence[InputSpec], limit: int | None
) -> Samples:
    """Return samples of a text for a model of which another model makes one input."""
    given = [spec for spec in specs if spec.name != maker.input]
    theirs = input_specs(maker.model)
    empty = text.unfilled(theirs)
    filled = [spec for spec in theirs if spec not in empty]
    text = replace(text, length=text.window([*given, *filled]))

    def produce() -> Iterator[tuple[Mapping[str, Any], str | None]]:
        session = Session(maker.model)
        sizes = {s.name: [d if isinstance(d, int) else 0 for d in s.shape or ()] for s in empty}
        nothing = {spec.name: np.zeros(sizes[spec.name], spec.dtype) for spec in empty}
        for ours, feeds in zip(
            text.samples(given, limit=limit), text.samples(filled, limit=limit), strict=True
        ):
            found = session.run({**feeds, **nothing}, [maker.output])
            yield {**ours, maker.input: found[maker.output]}, None

    described = text.samples(filled, limit=limit)
    return Samples(
        produce,
        specs,
        description=f"{described.description} through {maker.name}",
        len_hint=described.len_hint,
    )


_STEPS = 8
"""Tokens of a window behind which a decoder that takes one at a time goes on."""


def _samples_behind(
    plain: ir.Model, samples: Samples, specs: Sequence[InputSpec]
) -> Callable[[], Iterator[tuple[Mapping[str, Any], str | None]]]:
    """Return what gives samples that go on within each window, with the caches up to there.

    No token of a decoder sees those behind it: the beginning of a whole cache is an earlier one.
    """
    outputs = [value.name or "" for value in plain.graph.outputs]
    caches = {s.name: continued_by(s.name, outputs) or "" for s in specs if is_cache(s.name)}
    others = [spec for spec in specs if spec.name not in caches]
    single = fixed_length(specs)

    def produce() -> Iterator[tuple[Mapping[str, Any], str | None]]:
        session = Session(plain)
        for feeds in samples:
            tokens = next(array for name, array in feeds.items() if is_token_name(name))
            found, length = session.run(feeds, list(caches.values())), tokens.shape[1]
            same = {s.name: feeds[s.name] for s in others if s.name.startswith("encoder")}
            starts = np.linspace(length // 2, length - (single or 0), _STEPS if single else 1)
            for done in dict.fromkeys(map(int, starts)):
                part = tokens[:, done : done + (single or length)]
                ours = fill_token_inputs(part, [s for s in others if s.name not in same], done=done)
                past = {
                    name: found[made] if "encoder" in name else found[made][:, :, :done]
                    for name, made in caches.items()
                }
                yield {**ours, **same, **past}, None

    return produce


def _is_by_model(data: Any) -> bool:
    named = isinstance(data, Mapping) and bool(data)
    return named and all(str(name).endswith(".onnx") for name in data)


def _as_text(data: Any) -> Any:
    """Return what is a text as such."""
    if isinstance(data, ShapedData):
        text = _as_text(data.data)
        return replace(text, shapes=data.shapes) if isinstance(text, TextData) else data
    if is_text(data):
        return TextData(text=Path(data))
    return data


def with_configuration_beside(source: Any, data: Any) -> Any:
    """Return data with what lies beside a model's file, or in the folder above, to read it with.

    For a text that is a tokenizer, for images and recordings a `preprocessor_config.json`. Other
    data, and data beside which there is neither, are returned as they are.
    """
    folder = folder_with(source, (_PREPROCESSOR,))
    if folder is not None and holds_files(data, IMAGE_SUFFIXES):
        return ShapedData(data=data, transform=ImagePreprocess.from_config(folder / _PREPROCESSOR))
    if folder is not None and holds_files(data, AUDIO_SUFFIXES):
        return ShapedData(data=data, transform=AudioPreprocess.from_config(folder / _PREPROCESSOR))
    text, folder = _as_text(data), folder_with(source, (_TOKENIZER,))
    if not isinstance(text, TextData) or text.tokenizer is not None:
        return data
    if folder is None or Path(source).is_dir():
        return data
    return replace(text, tokenizer=folder / _TOKENIZER)


def _with_tokenizer(data: Any, root: Path) -> Any:
    """Return a text with the tokenizer and the configuration of the folder, if it has no others."""
    if not isinstance(data, TextData):
        return data
    data = replace(data, config=data.config or root)
    if data.tokenizer is not None:
        return data
    found = sorted(root.rglob(_TOKENIZER), key=lambda path: (len(path.parts), path))
    if not found:
        raise DataError(
            f"the folder {str(root)!r} has no tokenizer.json, which the text {data.name!r} "
            "needs; give one (tokenizer, --tokenizer)."
        )
    return replace(data, tokenizer=found[0])
