"""Reports of fine-tuned segments, and the check that torch is there."""

from __future__ import annotations

import msgspec

from bitwright.errors import MissingPackageError, RecipeError


class SegmentReport(msgspec.Struct, frozen=True):
    """The error of a segment before and after fine-tuning, or why it was not fine-tuned."""

    first: str
    weights: int
    before: float = 0.0
    after: float = 0.0
    steps: int = 0
    kept: bool = False
    reason: str | None = None

    def __str__(self) -> str:
        if self.reason is not None:
            return f"{self.first}: left as it was, {self.reason}"
        verdict = "" if self.kept else ", not kept"
        return f"{self.first}: error {self.before:.3g} -> {self.after:.3g}{verdict}"


def notes_of(reports: list[SegmentReport]) -> list[str]:
    """Return what a plan tells about segments that learned."""
    if not reports:
        return ["nothing to fine-tune: no quantized layer has a constant integer weight"]
    kept = [report for report in reports if report.kept]
    segments = "segment" if len(reports) == 1 else "segments"
    notes = [f"fine-tuned {len(kept)} of {len(reports)} {segments}"]
    return [*notes, *(f"fine-tuning: {report}" for report in reports)]


def require_torch(device: str = "cpu") -> None:
    """Raise an error where there is no torch, or not the device."""
    try:
        import torch
    except ImportError as error:
        raise MissingPackageError(
            "fine-tuning needs torch, which is not installed; install bitwright[torch]."
        ) from error
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or not (number or "0").isdecimal():
        raise RecipeError(f"device={device!r} is no place to fine-tune; use cpu, cuda or cuda:1.")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise MissingPackageError("torch finds no CUDA device here; fine-tune on the CPU.")
