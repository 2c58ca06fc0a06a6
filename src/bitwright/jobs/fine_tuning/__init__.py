"""Learn weights segment by segment, so that the quantized model comes closer to float."""
