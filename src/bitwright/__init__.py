"""Bitwright quantizes ONNX models: smaller, faster, and as accurate as the number format allows.

>>> import bitwright
>>> demo = bitwright.load_demo()
>>> result = bitwright.quantize(demo.model_path, data=demo.calibration[:32], recipe="int8")
>>> result.size < result.float_size
True
"""

import os as _os
import sys as _sys

import lazy_loader

# ONNX Runtime 1.31 and newer make an identifier of the device and a telemetry client when they are
# imported, and the client looks up a server with the first session. The variable keeps it from
# starting, in worker processes too, and a value that a user has set stays. A program that has
# imported the runtime before us has the client already: that one is told to send nothing.
if "ORT_DISABLE_TELEMETRY" not in _os.environ:
    _os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    if hasattr(_sys.modules.get("onnxruntime"), "disable_telemetry_events"):
        _sys.modules["onnxruntime"].disable_telemetry_events()

# `__init__.pyi` lists the public names. Each is loaded when first used: the import stays light.
_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# Names of other tools, of which several have some with meanings of their own.
_OF_TOOLS = ("CalibrationMethod", "QuantFormat", "QuantType", "quantize_dynamic", "quantize_static")
_OF_VITIS = ("PowerOfTwoMethod", "VitisQuantFormat", "VitisQuantType")


def __getattr__(name: str) -> object:
    if name in _OF_TOOLS:
        raise AttributeError(
            f"bitwright has no {name!r} of its own, since tools differ in it; take it from "
            "bitwright.compat.onnxruntime or bitwright.compat.vai_q_onnx, or call "
            "bitwright.quantize."
        )
    if name in _OF_VITIS:
        raise AttributeError(
            f"bitwright has no {name!r} of its own; take it from bitwright.compat.vai_q_onnx."
        )
    return _load(name)
