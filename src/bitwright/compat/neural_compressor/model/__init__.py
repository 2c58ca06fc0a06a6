"""`neural_compressor.model`."""
