"""How a recording becomes the array that a speech model reads: waves, or log-mel spectra."""

from __future__ import annotations

import json
import wave
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.data.samples import NamedSample, Samples
from bitwright.data.specs import Array, InputSpec
from bitwright.errors import DataError

AUDIO_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".m4a", ".opus", ".aac", ".wma")
INPUTS = ("input_features", "input_values")
"""Names that exporters give the input of a recording: spectra, and waves."""
_LONGEST = 30
"""Seconds of a recording that a model of waves is given."""
_HIGHEST = 8000.0
"""Hertz up to which Whisper's spectra go, whatever the rate."""
_NUMBERS = {"sampling_rate": 16000, "feature_size": 80, "hop_length": 160, "n_fft": 400}
_MOST = 1 << 24
"""Values of one recording up to which a configuration is believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioPreprocess:
    """How recordings become what a model reads, as its `preprocessor_config.json` says.

    >>> spec = InputSpec("input_values", np.dtype("float32"), (1, "samples"))
    >>> AudioPreprocess(spectra=False).apply(np.ones(4, np.float32), spec).tolist()
    [0.0, 0.0, 0.0, 0.0]
    """

    spectra: bool
    """Log-mel spectra as Whisper reads them; else waves as Wav2Vec2 does."""
    normalize: bool = True
    sampling_rate: int = 16000
    feature_size: int = 80
    hop_length: int = 160
    n_fft: int = 400
    seconds: int = _LONGEST
    padding_value: float = 0.0

    @classmethod
    def from_config(cls, path: Path) -> AudioPreprocess:
        """Read the configuration that transformers keeps beside a speech model."""
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
            kind = str(given.get("feature_extractor_type"))
            numbers: dict[str, Any] = {n: int(given.get(n, usual)) for n, usual in _NUMBERS.items()}
            seconds = int(given.get("chunk_length", _LONGEST))
            padding = float(given.get("padding_value", 0.0))
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise DataError(f"{str(path)!r} cannot be read ({error}); give .npy files.") from error
        if kind not in ("WhisperFeatureExtractor", "Wav2Vec2FeatureExtractor"):
            raise DataError(
                f"{str(path)!r} prepares recordings by {kind}, which is not done here, as those of "
                "Whisper and Wav2Vec2 are; give .npy or .npz files of what it makes."
            )
        made = cls(spectra=kind.startswith("Whisper"), seconds=seconds, **numbers)
        frames = made.length // max(made.hop_length, 1) * made.n_fft
        sizes = (made.length, frames, made.feature_size * made.n_fft)
        if min(*numbers.values(), seconds) < 1 or max(sizes) > _MOST or made.n_fft > made.length:
            raise DataError(f"{str(path)!r} has sizes that no model reads; give .npy files.")
        normal = not made.spectra and bool(given.get("do_normalize", True))
        return replace(made, normalize=normal, padding_value=padding)

    @property
    def length(self) -> int:
        """Samples of a recording that are read."""
        return self.seconds * self.sampling_rate

    def apply(self, recording: Array, spec: InputSpec) -> Array:
        """Return what the input gets of a recording, without the batch dimension."""
        size = spec.shape[-1] if spec.shape and not self.spectra else None
        length = size if isinstance(size, int) else self.length
        wave = recording[:length]
        if self.normalize:
            wave = (wave - wave.mean()) / np.sqrt(wave.var() + np.float32(1e-7))
        if self.spectra or isinstance(size, int):
            missing = length - len(wave)
            wave = np.pad(wave, (0, missing), constant_values=self.padding_value)
        return self._log_mel(wave) if self.spectra else wave

    def _log_mel(self, wave: Array) -> Array:
        """Return Whisper's log-mel spectrum (Radford et al. 2022), its largest 8 decades."""
        padded = np.pad(wave.astype(np.float64), self.n_fft // 2, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, self.n_fft)[:: self.hop_length]
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.n_fft) / self.n_fft)
        power = np.abs(np.fft.rfft(frames * window, axis=1)).astype(np.float64) ** 2
        filters = _mel_filters(1 + self.n_fft // 2, self.feature_size, self.sampling_rate)
        logs = np.log10(np.maximum(power @ filters, 1e-10)).T[:, :-1]
        found: Array = (np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0
        return found.astype(np.float32)


@cache
def _mel_filters(bins: int, count: int, rate: int) -> Array:
    """Return triangles on Slaney's mel scale, linear to 1 kHz and then logarithmic, of one area."""
    step = np.log(6.4) / 27
    highest = 15 + np.log(_HIGHEST / 1000) / step
    mels = np.linspace(0, highest, count + 2)
    corners = np.where(mels < 15, 200 * mels / 3, 1000 * np.exp(step * (mels - 15)))
    slopes = corners[None, :] - np.linspace(0, rate // 2, bins)[:, None]
    widths = np.diff(corners)
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    triangles: Array = np.maximum(0, np.minimum(rising, falling))
    areas: Array = triangles * (2 / (corners[2:] - corners[:-2]))
    return areas


def read_recording(path: Path, rate: int) -> Array:
    """Return the samples of a .wav file between -1 and 1, the mean of its channels."""
    if path.suffix.lower() != ".wav":
        raise DataError(f"{str(path)!r} is no .wav file; convert it: {_convert(path, rate)}")
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, found = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = np.frombuffer(file.readframes(file.getnframes()), np.uint8)
    except (OSError, EOFError, wave.Error) as error:
        raise DataError(
            f"{str(path)!r} cannot be read ({error}); convert it: {_convert(path, rate)}"
        ) from error
    if found != rate:
        raise DataError(
            f"{str(path)!r} has {found} samples a second, and the model reads {rate}; convert it: "
            f"{_convert(path, rate)}"
        )
    if len(data) < width * channels:
        raise DataError(f"{str(path)!r} holds no sound; leave it out of the data.")
    data = data[: len(data) // (width * channels) * width * channels].reshape(-1, width)
    if width == 1:  # the only one without a sign
        numbers = data[:, 0].astype(np.float32) / 128 - 1
    else:
        whole = np.zeros((len(data), 4), np.uint8)
        whole[:, 4 - width :] = data
        numbers = whole.view("<i4")[:, 0].astype(np.float64) / 2**31
    mono: Array = numbers.reshape(-1, channels).mean(axis=1).astype(np.float32)
    return mono


def _convert(path: Path, rate: int) -> str:
    return f"ffmpeg -i {path.name} -ac 1 -ar {rate} -c:a pcm_s16le {path.stem}-{rate}.wav"


def open_recordings(
    files: Sequence[Path], specs: Sequence[InputSpec], transform: Any, described: str
) -> Samples:
    """Open recordings, whose order is that of the samples, for a model of speech."""
    heard = next((spec for spec in specs if spec.name in INPUTS), None)
    if heard is None and len(specs) == 1:
        heard = specs[0]
    if heard is None or not isinstance(transform, AudioPreprocess):
        raise DataError(
            f"{described} holds recordings, and nothing says how the model reads them; put its "
            "preprocessor_config.json beside it, or give .npy or .npz files of its inputs."
        )
    name, chosen = heard, transform

    def produce() -> Iterator[NamedSample]:
        for file in files:
            found = chosen.apply(read_recording(file, chosen.sampling_rate), name)[np.newaxis]
            ones = np.ones((1, found.shape[-1]))
            masks = {s.name: ones.astype(s.dtype) for s in specs if s.name == "attention_mask"}
            sample: Mapping[str, Any] = {name.name: found.astype(name.dtype), **masks}
            yield sample, file.name

    return Samples(produce, tuple(specs), description=described)
