"""`neural_compressor.adaptor.ox_utils`."""
