"""`nncf.onnx.quantization.backend_parameters`: keys of `backend_params`."""

from __future__ import annotations

__all__ = ["BackendParameters"]


class BackendParameters:
    """The options that ONNX models alone have.

    >>> {BackendParameters.COMPRESS_WEIGHTS: False}
    {'compress_weights': False}
    """

    COMPRESS_WEIGHTS = "compress_weights"
    """False: weights stay float, with a pair behind each."""
    EXTERNAL_DATA_DIR = "external_data_dir"
    """The folder with the tensors of a model that was loaded without them."""
