"""Weights learned by gradient descent and coordinate descent (needs torch)."""
