"""Rounding: float weights to integers, by nearest, SQuant, GPTQ or HQQ."""
