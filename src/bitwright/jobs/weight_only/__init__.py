"""Low-bit weights while activations stay float: RTN, GPTQ, AWQ and HQQ as one pipeline."""
