"""Models quantized by the names of the Vitis AI quantizer."""

from bitwright.compat import vai_q_onnx
from support.models import Reader, make_samples


def quantize_vai(model, options=None, *, samples=None, **arguments):
    """Quantize with float scales and unsigned activations, unless arguments say otherwise."""
    arguments.setdefault("calibrate_method", "MinMax")
    arguments.setdefault("activation_type", vai_q_onnx.QuantType.QUInt8)
    samples = make_samples(model) if samples is None else samples
    return vai_q_onnx.quantize_static(
        model, None, Reader(samples), extra_options=options, **arguments
    )
