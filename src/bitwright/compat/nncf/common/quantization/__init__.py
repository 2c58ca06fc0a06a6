"""`nncf.common.quantization`."""
