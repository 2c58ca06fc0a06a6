"""Where calibration data comes from: readers, loaders, files, images and random numbers."""

from __future__ import annotations

from bitwright.data.holdout import HoldoutSplit, split_samples
from bitwright.data.image_preprocess import PREPROCESS_PRESETS, ImagePreprocess, Transform
from bitwright.data.random import RandomData
from bitwright.data.references import read_sample, read_samples, refer_to
from bitwright.data.requests import open_data, paths_of
from bitwright.data.samples import Samples, cache_samples, channels_first_specs, to_channels_last
from bitwright.data.shapes import ShapedData
from bitwright.data.specs import InputSpec, Sample, session_inputs
from bitwright.data.texts import TextData
from bitwright.data.token_inputs import fill_token_inputs, is_cache

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
    "Transform",
    "cache_samples",
    "channels_first_specs",
    "fill_token_inputs",
    "is_cache",
    "open_data",
    "paths_of",
    "read_sample",
    "read_samples",
    "refer_to",
    "session_inputs",
    "split_samples",
    "to_channels_last",
]
