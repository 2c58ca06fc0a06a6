"""`bitwright preprocess`: clean up a float model and fill in its shapes."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from bitwright.cli import options as opt
from bitwright.cli.groups import option, switch
from bitwright.cli.piping import written
from bitwright.cli.screen import Facts, Screen, show_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PreprocessOptions:
    """What is to be cleaned up, and where the result goes."""

    output: opt.Output
    weights: opt.Weights = None
    optimize: bool = option(
        None, "Fold constants, batch norms and scales, drop what does nothing.", default=True
    )
    onnx_shapes: bool = option(None, "Run ONNX's shape inference.", default=True)
    symbolic_shapes: bool = option(
        None, "Run ONNX Runtime's symbolic shape inference.", default=True
    )
    auto_merge: bool = switch("Take dimensions that must be equal for one.")
    int_max: int = option("N", 'The integer that means "to the end" in a Slice.', default=2**31 - 1)
    guess_output_rank: bool = switch("Take unknown ops to keep their input's rank.")
    external_data: opt.ExternalData = None


def preprocess_command(model: opt.Model, *, options: PreprocessOptions, screen: Screen) -> None:
    """Clean up a float model and fill in its shapes.

    'bitwright quantize' does this by itself.
    """

    from bitwright import graph
    from bitwright.api import preprocess

    given = asdict(options)
    output = given.pop("output")
    with written(output) as file:
        result = preprocess(model, file, verbose=3 if screen.verbose else 0, **given)
        before, after = graph.file_size(model), graph.file_size(file)
        document = {
            "output": str(output),
            "bytes_before": before,
            "bytes": after,
            "notes": result.notes,
            "skipped": result.skipped,
        }
        rows = [("Note", note) for note in result.notes]
        rows += [("Left out", f"{step}: {reason}") for step, reason in result.skipped.items()]
        rows += [
            ("Size", f"{show_bytes(before)} -> {show_bytes(after)}"),
            ("Written to", str(output)),
        ]
        screen.show(document, [Facts(rows)])
