"""Sensitivity of the outputs to each node: with only it quantized, and with all but it."""
