"""Work in a Python process of its own: one side asks, the other answers."""

from bitwright.support.processes.client import Child, ChildLost, ChildRefused

__all__ = ["Child", "ChildLost", "ChildRefused"]
