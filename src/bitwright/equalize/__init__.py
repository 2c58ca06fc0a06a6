"""Equalization: cross-layer equalization, SmoothQuant and AWQ scaling; the function stays."""
