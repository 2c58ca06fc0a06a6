"""Rules of hardware as values: what a file of a target can say, one kind of rule a class.

Each rule stands in a file under a name of its own. The planner reads it forward
(`recipe.targeting`: which types, which pairs), `verify` backward
(`verification.target_rules`: what is there, and what is allowed).
"""

from __future__ import annotations

from bitwright.targets.rules.operators import (
    AbsentInputs,
    AttributeSets,
    AttributeValues,
    ConstantInputs,
    IndexValues,
    InputCount,
    KeptAxes,
    KnownOperators,
    LastAxis,
    OddValues,
    Rank,
    RefusedOperators,
    StaticShapes,
    VectorInputs,
)
from bitwright.targets.rules.products import (
    AttentionSizes,
    ConvolutionSizes,
    SizeRule,
    SmallProducts,
)
from bitwright.targets.rules.rule import (
    Consequence,
    Role,
    Rule,
    TypeName,
)
from bitwright.targets.rules.tensors import (
    Biases,
    BlockShape,
    ChannelAxis,
    FixedOutput,
    FixedScale,
    Granularity,
    NestedScales,
    NoOutputType,
    OneReader,
    OpsetOfTypes,
    OpsetRange,
    OutputRange,
    PositiveScales,
    StoredWeights,
    Types,
    UnmixedTypes,
    WeightCodes,
    WrittenAxis,
    ZeroPoints,
)
from bitwright.targets.rules.units import (
    Activations,
    BlockedProducts,
    EqualParameters,
    EqualTypes,
    FloatOperators,
    Group,
    LowBitProducts,
    NodeUnits,
    QuantizedReaders,
    Residual,
    SameScale,
    SignedWeights,
    TransposedWeights,
    TypePairs,
    Unquantized,
    WholeUnits,
)

__all__ = [
    "AbsentInputs",
    "Activations",
    "AttentionSizes",
    "AttributeSets",
    "AttributeValues",
    "Biases",
    "BlockShape",
    "BlockedProducts",
    "ChannelAxis",
    "Consequence",
    "ConstantInputs",
    "ConvolutionSizes",
    "EqualParameters",
    "EqualTypes",
    "FixedOutput",
    "FixedScale",
    "FloatOperators",
    "Granularity",
    "Group",
    "IndexValues",
    "InputCount",
    "KeptAxes",
    "KnownOperators",
    "LastAxis",
    "LowBitProducts",
    "NestedScales",
    "NoOutputType",
    "NodeUnits",
    "OddValues",
    "OneReader",
    "OpsetOfTypes",
    "OpsetRange",
    "OutputRange",
    "PositiveScales",
    "QuantizedReaders",
    "Rank",
    "RefusedOperators",
    "Residual",
    "Role",
    "Rule",
    "RuleKind",
    "SameScale",
    "SignedWeights",
    "SizeRule",
    "SmallProducts",
    "StaticShapes",
    "StoredWeights",
    "TransposedWeights",
    "TypeName",
    "TypePairs",
    "Types",
    "UnmixedTypes",
    "Unquantized",
    "VectorInputs",
    "WeightCodes",
    "WholeUnits",
    "WrittenAxis",
    "ZeroPoints",
]

RuleKind = (
    Biases
    | BlockShape
    | ChannelAxis
    | FixedOutput
    | Granularity
    | NestedScales
    | NoOutputType
    | OneReader
    | OpsetOfTypes
    | OpsetRange
    | OutputRange
    | PositiveScales
    | StoredWeights
    | Types
    | UnmixedTypes
    | WeightCodes
    | WrittenAxis
    | ZeroPoints
    | Activations
    | BlockedProducts
    | EqualParameters
    | EqualTypes
    | FloatOperators
    | Group
    | LowBitProducts
    | NodeUnits
    | QuantizedReaders
    | Residual
    | SameScale
    | SignedWeights
    | TransposedWeights
    | TypePairs
    | Unquantized
    | WholeUnits
    | AttentionSizes
    | ConvolutionSizes
    | SmallProducts
    | AbsentInputs
    | AttributeSets
    | AttributeValues
    | ConstantInputs
    | IndexValues
    | InputCount
    | KeptAxes
    | KnownOperators
    | LastAxis
    | OddValues
    | Rank
    | RefusedOperators
    | StaticShapes
    | VectorInputs
)
