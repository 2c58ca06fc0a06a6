"""Hardware as data: what each target takes, and the limits of its arithmetic."""

from bitwright.errors import TargetError, did_you_mean
from bitwright.targets.cpu import CPU
from bitwright.targets.npu_cnn import NPU_CNN
from bitwright.targets.npu_transformer import NPU_TRANSFORMER
from bitwright.targets.target import Target

__all__ = ["CPU", "NPU_CNN", "NPU_TRANSFORMER", "TARGETS", "Target", "find_target"]

TARGETS = {target.name: target for target in (CPU, NPU_CNN, NPU_TRANSFORMER)}


def find_target(name: str) -> Target:
    """Return the target of this name.

    >>> find_target("npu-cnn").power_of_two
    True
    """
    if name not in TARGETS:
        raise TargetError(f"unknown target {name!r}.{did_you_mean(name, TARGETS)}")
    return TARGETS[name]
