"""Stand-ins for torchvision's compiled operators, which do not load beside torch's CPU build."""

from __future__ import annotations

import torch

# torchvision does not even import while these are unknown.
_LIBRARY = torch.library.Library("torchvision", "DEF")
_LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_LIBRARY.define(
    "qnms(Tensor dets, Tensor scores, Tensor dets_scale, float iou_threshold) -> Tensor"
)


def _suppress(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    """Return the boxes that no better one overlaps, best first."""
    from torchvision.ops import box_iou

    overlaps = box_iou(boxes, boxes)
    kept: list[int] = []
    for index in scores.argsort(descending=True).tolist():
        if all(overlaps[index, other] <= threshold for other in kept):
            kept.append(index)
    return torch.tensor(kept, dtype=torch.int64)


_LIBRARY.impl("nms", _suppress, "CPU")
