"""Differences from Quark, one row each, as the guide shows them."""

from __future__ import annotations

from bitwright.compat.differences import Difference

MODELS = (
    Difference(
        "QConfig",
        "`ignore_warnings` is True",
        "False",
        "warnings tell what has no effect",
    ),
    Difference(
        "AdaRoundConfig",
        "drops `reg_param`, `beta_range`, `warm_start`, `parallel` and more, as `AdaQuantConfig` "
        "does",
        "every argument is passed on, or refused",
        "an argument that is given is asked for",
    ),
    Difference(
        "ModelQuantizer",
        "Ext mode writes integers up to 16 bits in `com.microsoft` pairs",
        "extended operators with bodies; `UseQDQVitisCustomOps: False` gives standard pairs",
        "bodies run in every ONNX Runtime",
    ),
    Difference(
        "QConfig",
        "mixed presets (`BF16_MIXED_BFP16` and its kin), `VINT8`",
        "refused: give types of single tensors in `TensorQuantOverrides`",
        "which tensor gets which type is chosen by a search that Quark does not document",
    ),
    Difference(
        "AutoMixprecisionConfig",
        "with a threshold, `data_size` 0 compares one sample, though all are documented; "
        "`subgraph_json`, `sensitivity_cache_file`, `dual_quant_nodes`, `no_input_qdq_shared` and "
        "`shared_param_mode`",
        "0 is all samples; these settings are refused. `bitwright.tune` searches by your metric, "
        "and with fewer runs",
        "one sample decides nothing",
    ),
    Difference(
        "QuarotConfig",
        "QuaRot, `AutoSearch`",
        "not here: [`bitwright sensitivity`](assess.md) finds what to keep wide, and `--effort` "
        "tries steps",
        "one way to choose types is enough",
    ),
    Difference(
        "GPTQConfig",
        "reads the wrong triangle of its matrix, so that weights are rounded to nearest in effect, "
        "for the inputs of one batch; `bits` and `group_size` count for nothing",
        "GPTQ, layer by layer on all samples, also of Conv and Gemm; arguments without effect are "
        "warned of",
        "it is what was asked for",
    ),
)
