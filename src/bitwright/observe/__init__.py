"""Observe a model's tensors: one streaming pass over the data, in constant memory."""

from bitwright.observe.observer import (
    MEMORY_BUDGET,
    Detail,
    Observation,
    Runner,
    SketchOptions,
    as_runner,
    fill_sketches,
    observe,
)
from bitwright.observe.sketch import TensorSketch
from bitwright.observe.store import KeptObservations, load_sketches, save_sketches
from bitwright.support.engines import LOCAL, Engine, LocalEngine, RayEngine, open_engine

__all__ = [
    "LOCAL",
    "MEMORY_BUDGET",
    "Detail",
    "Engine",
    "KeptObservations",
    "LocalEngine",
    "Observation",
    "RayEngine",
    "Runner",
    "SketchOptions",
    "TensorSketch",
    "as_runner",
    "fill_sketches",
    "load_sketches",
    "observe",
    "open_engine",
    "save_sketches",
]
