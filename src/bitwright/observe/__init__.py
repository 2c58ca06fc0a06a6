"""Observe a model's tensors: one streaming pass over the data, in constant memory."""

from bitwright.observe.engines import LocalEngine, RayEngine, open_engine
from bitwright.observe.layerwise import LayerInputs, LayerwiseRun, run_side_by_side
from bitwright.observe.observer import MEMORY_BUDGET, Detail, Engine, Observation, observe
from bitwright.observe.sketch import TensorSketch
from bitwright.observe.spool import Spool
from bitwright.observe.store import load_sketches, save_sketches

__all__ = [
    "MEMORY_BUDGET",
    "Detail",
    "Engine",
    "LayerInputs",
    "LayerwiseRun",
    "LocalEngine",
    "Observation",
    "RayEngine",
    "Spool",
    "TensorSketch",
    "load_sketches",
    "observe",
    "open_engine",
    "run_side_by_side",
    "save_sketches",
]
