"""The names of this package and where each is defined."""

from .chain import OpenPart as OpenPart
from .chain import PartChain as PartChain
from .chain import PartModel as PartModel
from .layerwise import LayerwiseRun as LayerwiseRun
from .layerwise import run_side_by_side as run_side_by_side
from .opening import runtime_reason as runtime_reason
from .opset_upgrade import upgrade_opset as upgrade_opset
from .part import Extractor as Extractor
from .part import Part as Part
from .part import cut_model as cut_model
from .part import open_function as open_function
from .part_runner import PartRunner as PartRunner
from .session import Level as Level
from .session import Session as Session
from .spool import Spool as Spool
from .tensor_groups import SessionRunner as SessionRunner
