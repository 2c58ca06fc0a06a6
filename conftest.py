"""Modules that need torch are left out of the doctests where it is not installed."""

from importlib.util import find_spec

collect_ignore_glob = (
    []
    if find_spec("torch")
    else [
        "src/bitwright/compat/quark/finetuning/*",
        "src/bitwright/fine_tuning/simulation.py",
        "src/bitwright/rounding/ada*.py",
        "src/bitwright/rounding/grid.py",
        "src/bitwright/rounding/reconstruction.py",
        "src/bitwright/rounding/torch_*",
    ]
)
