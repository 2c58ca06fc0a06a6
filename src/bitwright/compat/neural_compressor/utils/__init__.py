"""`neural_compressor.utils`."""
