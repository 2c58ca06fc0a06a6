"""Rotation of a language model: the same function, with outliers spread over all channels.

S. Ashkboos et al., "QuaRot" (2024, arXiv:2404.00456) and Z. Liu et al., "SpinQuant" (2024,
arXiv:2405.16406), the rotations R1 and R2 that need no operator at run time. R1: what embeddings
and products add to the residual stream is multiplied with an orthogonal matrix R, and the products
that read it, behind norms whose gains they take over, with its transpose. R2: the same for the
values of each attention head, between the products that make and that read them.
"""

from bitwright.equalize.rotation.model import Rotated, rotate_model

__all__ = ["Rotated", "rotate_model"]
