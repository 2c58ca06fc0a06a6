"""Which tensors, which type, which scale: from a graph and sketches to a plan."""
