"""The names of `onnxruntime.quantization.operators`: one quantizer class for each operator.

They can be imported, compared and derived from. To make one is an error that says what to use.
"""
