"""The report: one HTML file that says how good a quantized model is, and what to do about it."""
