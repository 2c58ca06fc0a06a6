"""What `vai_q_onnx` offers, by the same names: change the import line and go on.

>>> import bitwright.compat.vai_q_onnx as vai_q_onnx
>>> vai_q_onnx.PowerOfTwoMethod.MinMSE, vai_q_onnx.VitisQuantFormat.QDQ.value
(<PowerOfTwoMethod.MinMSE: 1>, 2)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
