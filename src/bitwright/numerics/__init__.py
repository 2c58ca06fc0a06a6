"""Number types, scale formulas, quantizing and bit packing: numpy in, numpy out."""
