"""The names of this package and where each is defined."""

from .holdout import HoldoutSplit as HoldoutSplit
from .holdout import split_samples as split_samples
from .image_preprocess import PREPROCESS_PRESETS as PREPROCESS_PRESETS
from .image_preprocess import ImagePreprocess as ImagePreprocess
from .image_preprocess import Transform as Transform
from .random import RandomData as RandomData
from .references import read_sample as read_sample
from .references import read_samples as read_samples
from .references import refer_to as refer_to
from .requests import open_data as open_data
from .requests import paths_of as paths_of
from .samples import Samples as Samples
from .samples import cache_samples as cache_samples
from .samples import channels_first_specs as channels_first_specs
from .samples import to_channels_last as to_channels_last
from .shapes import ShapedData as ShapedData
from .specs import InputSpec as InputSpec
from .specs import Sample as Sample
from .specs import session_inputs as session_inputs
from .texts import TextData as TextData
from .token_inputs import fill_token_inputs as fill_token_inputs
from .token_inputs import is_cache as is_cache
