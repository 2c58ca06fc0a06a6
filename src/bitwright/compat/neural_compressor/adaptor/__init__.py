"""`neural_compressor.adaptor`."""
