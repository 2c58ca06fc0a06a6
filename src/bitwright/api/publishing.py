"""The verb that publishes: every variant of a model that a loader asks for, each one certified."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwright.data import Transform
from bitwright.support import Progress, check_arguments

if TYPE_CHECKING:
    from bitwright.jobs.publishing.card import Published


@check_arguments
def publish(
    source: str | Path,
    output: str | Path,
    *,
    loader: str = "transformers.js",
    variants: Sequence[str] | None = None,
    max_size: int | str | None = None,
    data: Any = None,
    limit: int | None = None,
    transform: Transform = None,
    reports: bool = True,
    golden: int = 0,
    golden_from_data: bool = False,
    progress: Progress = True,
) -> Published:
    """Write a model in every form that a loader asks for, each tried before it gets its name.

    What is far from float, or larger or slower than a better variant, is not written; `README.md`
    and `bitwright.json` say why. A run that is interrupted goes on where it ended.

    Args:
        source: an .onnx file, or a folder of models as exporters write it.
        output: the folder to write.
        loader: who loads it.
        variants: such as `"q8"`, also where another is better; None: all that make sense.
        max_size: bytes that no variant of a part is to exceed, or such as `"200MB"`.
        data: samples to calibrate and to judge on, as for `quantize`; None: random ones.
        limit: use at most this many samples, 64 if not given.
        transform: how images become arrays, or a function that is given each item of the data.
        reports: also write an HTML page about each variant.
        golden: store the answers to so many random samples in each file, in at most 1 MB;
            `verify(file, "here")` asks for them again, on any machine.
        golden_from_data: take the samples from the data: whoever has the file has them, too.
        progress: show a bar on a terminal, or call this with (variants done, variants in all).

    >>> import bitwright, tempfile
    >>> from bitwright.api import publish
    >>> demo = bitwright.load_demo()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = publish(
    ...         demo.model_path, f"{folder}/out", loader="edge", variants=["static"],
    ...         data=demo.calibration[:32], reports=False,
    ...     )
    >>> made.written[0].file, made.written[0].level
    ('digits_static.onnx', 'good')
    """
    given = dict(locals())
    from bitwright.jobs.publishing.job import PublishRequest, publish_folder

    return publish_folder(PublishRequest(**given))
