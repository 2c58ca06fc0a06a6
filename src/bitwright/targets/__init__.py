"""Hardware as data: what each target takes, and the limits of its arithmetic."""

import functools
from collections.abc import Iterator, Mapping

from bitwright.targets.target import Target, known_names, read_target

__all__ = ["CPU", "NPU_CNN", "TARGETS", "Target", "find_target"]


class _Targets(Mapping[str, Target]):
    """The targets that come with the package, each read when it is asked for."""

    def __getitem__(self, name: str) -> Target:
        if name not in known_names():
            raise KeyError(name)
        return _read_once(name)

    def __iter__(self) -> Iterator[str]:
        return iter(known_names())

    def __len__(self) -> int:
        return len(known_names())


_read_once = functools.cache(read_target)
TARGETS: Mapping[str, Target] = _Targets()


def find_target(name: str) -> Target:
    """Return the target of this name, or from a file of the user's own."""
    plain = name.partition(":")[0]
    return _read_once(name) if plain in known_names() else read_target(name)


CPU = TARGETS["cpu"]
NPU_CNN = TARGETS["npu-cnn"]
