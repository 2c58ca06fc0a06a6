"""Scales and zero points of tensors and biases, and what keeps them from overflowing."""
