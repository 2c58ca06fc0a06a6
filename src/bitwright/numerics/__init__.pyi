"""The names of this package and where each is defined."""

from .arrays import NUMPY as NUMPY
from .arrays import Arrays as Arrays
from .blocks import QuantizedBlocks as QuantizedBlocks
from .broadcasting import along_axis as along_axis
from .nearest_blocks import pack_nearest as pack_nearest
from .quantize import fake_quantize as fake_quantize
from .row_reading import load_rows as load_rows
from .second_moment import Batches as Batches
from .second_moment import CrossMoment as CrossMoment
from .second_moment import SecondMoment as SecondMoment
from .stacked import as_matrix as as_matrix
from .stacked import as_stack as as_stack
from .types import INT4 as INT4
from .types import QTYPES as QTYPES
