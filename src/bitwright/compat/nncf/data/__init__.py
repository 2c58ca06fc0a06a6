"""`nncf.data`."""

from __future__ import annotations

from bitwright.compat.nncf.data.dataset import Dataset

__all__ = ["Dataset"]
