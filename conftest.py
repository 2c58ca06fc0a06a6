"""Modules that need torch are left out of the doctests where it is not installed."""

from importlib.util import find_spec

collect_ignore_glob = (
    []
    if find_spec("torch")
    else [
        "src/bitwright/compat/quark/finetuning/*",
        "src/bitwright/jobs/fine_tuning/quantized_block.py",
        "src/bitwright/learning/*",
    ]
)
