"""The names of the tools people come from, one module each, on the same core."""
