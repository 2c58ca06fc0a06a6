"""Bitwright quantizes ONNX models: smaller, faster, and as accurate as the number format allows.

>>> import bitwright
>>> demo = bitwright.load_demo()
>>> result = bitwright.quantize(demo.model_path, data=demo.calibration[:32], recipe="int8")
>>> result.size < result.float_size
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitwright._deferred import defer_sympy
from bitwright._lazy import loader
from bitwright._version import __version__

if TYPE_CHECKING:
    from bitwright.api import (
        apply_plan,
        bench,
        compare,
        find_sensitivity,
        import_qat,
        inspect,
        make_plan,
        preprocess,
        quantize,
        verify,
    )
    from bitwright.assess import (
        Benchmark,
        Comparison,
        Finding,
        Inspection,
        ModelBenchmark,
        NodeComparison,
        NodeSensitivity,
        OutputComparison,
        Proposal,
        Sensitivity,
        TensorComparison,
        Verification,
    )
    from bitwright.compat.onnxruntime.enums import CalibrationMethod, QuantFormat, QuantType
    from bitwright.compat.vai_q_onnx.enums import (
        PowerOfTwoMethod,
        VitisQuantFormat,
        VitisQuantType,
    )
    from bitwright.compat.vai_q_onnx.static import quantize_static
    from bitwright.data import ImagePreprocess, RandomData, TextData, open_data
    from bitwright.demo import load_demo
    from bitwright.errors import (
        ArgumentError,
        BitwrightError,
        DataError,
        MissingPackageError,
        ModelError,
        OutputError,
        PlanError,
        RecipeError,
        TargetError,
    )
    from bitwright.jobs.report import Report, write_report
    from bitwright.jobs.result import Result
    from bitwright.plan import NodePlan, QuantPlan, TensorPlan
    from bitwright.recipe import (
        AWQ,
        GPTQ,
        HQQ,
        MSE,
        RECIPES,
        TARGETS,
        AdaQuant,
        AdaRound,
        CrossLayerEqualization,
        Distribution,
        Entropy,
        LayerwisePercentile,
        Limits,
        MinMax,
        MinMSE,
        Nearest,
        NonOverflow,
        Override,
        Percentile,
        Placement,
        Recipe,
        Rewrites,
        Selection,
        Simulation,
        SmoothQuant,
        WeightOnly,
        WeightOverride,
        load_recipe,
    )

# Where each public name lives. Loaded when first used: `import bitwright` must stay light.
_HOMES = {
    "bitwright.api": (
        "apply_plan",
        "bench",
        "compare",
        "find_sensitivity",
        "import_qat",
        "inspect",
        "make_plan",
        "preprocess",
        "quantize",
        "verify",
    ),
    "bitwright.assess": (
        "Benchmark",
        "Comparison",
        "Finding",
        "Inspection",
        "ModelBenchmark",
        "NodeComparison",
        "NodeSensitivity",
        "OutputComparison",
        "Proposal",
        "Sensitivity",
        "TensorComparison",
        "Verification",
    ),
    "bitwright.compat.onnxruntime.enums": ("CalibrationMethod", "QuantFormat", "QuantType"),
    "bitwright.compat.vai_q_onnx.enums": (
        "PowerOfTwoMethod",
        "VitisQuantFormat",
        "VitisQuantType",
    ),
    "bitwright.compat.vai_q_onnx.static": ("quantize_static",),
    "bitwright.data": ("ImagePreprocess", "RandomData", "TextData", "open_data"),
    "bitwright.demo": ("load_demo",),
    "bitwright.errors": (
        "ArgumentError",
        "BitwrightError",
        "DataError",
        "MissingPackageError",
        "ModelError",
        "OutputError",
        "PlanError",
        "RecipeError",
        "TargetError",
    ),
    "bitwright.plan": ("NodePlan", "QuantPlan", "TensorPlan"),
    "bitwright.recipe": (
        "AWQ",
        "GPTQ",
        "HQQ",
        "MSE",
        "RECIPES",
        "TARGETS",
        "AdaQuant",
        "AdaRound",
        "CrossLayerEqualization",
        "Distribution",
        "Entropy",
        "LayerwisePercentile",
        "Limits",
        "MinMSE",
        "MinMax",
        "Nearest",
        "NonOverflow",
        "Override",
        "Percentile",
        "Placement",
        "Recipe",
        "Rewrites",
        "Selection",
        "Simulation",
        "SmoothQuant",
        "WeightOnly",
        "WeightOverride",
        "load_recipe",
    ),
    "bitwright.jobs.report": ("Report", "write_report"),
    "bitwright.jobs.result": ("Result",),
}

__all__ = [
    "AWQ",
    "GPTQ",
    "HQQ",
    "MSE",
    "RECIPES",
    "TARGETS",
    "AdaQuant",
    "AdaRound",
    "ArgumentError",
    "Benchmark",
    "BitwrightError",
    "CalibrationMethod",
    "Comparison",
    "CrossLayerEqualization",
    "DataError",
    "Distribution",
    "Entropy",
    "Finding",
    "ImagePreprocess",
    "Inspection",
    "LayerwisePercentile",
    "Limits",
    "MinMSE",
    "MinMax",
    "MissingPackageError",
    "ModelBenchmark",
    "ModelError",
    "Nearest",
    "NodeComparison",
    "NodePlan",
    "NodeSensitivity",
    "NonOverflow",
    "OutputComparison",
    "OutputError",
    "Override",
    "Percentile",
    "Placement",
    "PlanError",
    "PowerOfTwoMethod",
    "Proposal",
    "QuantFormat",
    "QuantPlan",
    "QuantType",
    "RandomData",
    "Recipe",
    "RecipeError",
    "Report",
    "Result",
    "Rewrites",
    "Selection",
    "Sensitivity",
    "Simulation",
    "SmoothQuant",
    "TargetError",
    "TensorComparison",
    "TensorPlan",
    "TextData",
    "Verification",
    "VitisQuantFormat",
    "VitisQuantType",
    "WeightOnly",
    "WeightOverride",
    "__version__",
    "apply_plan",
    "bench",
    "compare",
    "find_sensitivity",
    "import_qat",
    "inspect",
    "load_demo",
    "load_recipe",
    "make_plan",
    "open_data",
    "preprocess",
    "quantize",
    "quantize_static",
    "verify",
    "write_report",
]


defer_sympy()

__getattr__ = loader(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
