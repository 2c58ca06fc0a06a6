"""The names of this package and where each is defined."""

from .chain import OpenPart as OpenPart
from .chain import PartChain as PartChain
from .chain import PartModel as PartModel
from .layerwise import LayerwiseRun as LayerwiseRun
from .layerwise import PartOpener as PartOpener
from .layerwise import run_side_by_side as run_side_by_side
from .opening import IN_MEMORY_LIMIT as IN_MEMORY_LIMIT
from .opening import check_started as check_started
from .opening import runtime_reason as runtime_reason
from .opset_upgrade import upgrade_opset as upgrade_opset
from .optimized import OptimizedModel as OptimizedModel
from .optimized import name_nodes as name_nodes
from .optimized import read_optimized as read_optimized
from .part import Extractor as Extractor
from .part import Part as Part
from .part import cut_model as cut_model
from .part import open_function as open_function
from .part_runner import PartRunner as PartRunner
from .session import Level as Level
from .session import Session as Session
from .session import open_plainly as open_plainly
from .spool import SharedRow as SharedRow
from .spool import Spool as Spool
from .tensor_groups import SessionRunner as SessionRunner
from .trial import check_still_opens as check_still_opens
from .trial import try_opening as try_opening
