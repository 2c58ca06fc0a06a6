"""The `bitwright` command. Nothing heavy loads before a command needs it: help is instant."""

from __future__ import annotations

from bitwright.cli.app import main

__all__ = ["main"]
