"""The attributes of a node, read by name with their defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir


class Attributes:
    """What a node says beside its inputs."""

    def __init__(self, node: ir.Node, opset: int) -> None:
        self._found: dict[str, Any] = {name: a.value for name, a in node.attributes.items()}
        self.op_type = node.op_type
        self.opset = opset
        self.outputs = len(node.outputs)

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def value(self, name: str, default: Any = None) -> Any:
        """Return an attribute as it is stored."""
        return self._found.get(name, default)

    def number(self, name: str, default: float = 0.0) -> float:
        """Return a number."""
        return float(self._found.get(name, default))

    def text(self, name: str, default: str = "") -> str:
        """Return a word."""
        return str(self._found.get(name, default))

    def integers(self, name: str, count: int = 0, default: int = 0) -> list[int]:
        """Return whole numbers; those that are missing are `count` times the default."""
        found: Sequence[Any] | None = self._found.get(name)
        return [default] * count if found is None else [int(value) for value in found]

    def integer(self, name: str, default: int = 0) -> int:
        """Return a whole number."""
        return int(self._found.get(name, default))
