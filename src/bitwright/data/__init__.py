"""Where calibration data comes from: readers, loaders, files, images and random numbers."""

from __future__ import annotations

from bitwright.data.holdout import HoldoutSplit, split_holdout, split_samples
from bitwright.data.images import PREPROCESS_PRESETS, ImagePreprocess
from bitwright.data.random import RandomData, random_samples
from bitwright.data.requests import paths_of, read_data
from bitwright.data.shapes import ShapedData
from bitwright.data.sources import (
    Samples,
    cache_samples,
    channels_first_specs,
    open_data,
    to_channels_last,
)
from bitwright.data.specs import InputSpec, Sample, session_inputs
from bitwright.data.texts import TextData, fill_token_inputs, is_cache

__all__ = [
    "PREPROCESS_PRESETS",
    "HoldoutSplit",
    "ImagePreprocess",
    "InputSpec",
    "RandomData",
    "Sample",
    "Samples",
    "ShapedData",
    "TextData",
    "cache_samples",
    "channels_first_specs",
    "fill_token_inputs",
    "is_cache",
    "open_data",
    "paths_of",
    "random_samples",
    "read_data",
    "session_inputs",
    "split_holdout",
    "split_samples",
    "to_channels_last",
]
