"""What our quantizer classes have in common: a plan of the whole model, on the peer's classes.

They derive from the peer's, so that their methods answer and mark tensors as there. The peer's own
pass over the nodes runs where a plan does not have what is asked for: a client derived a class
that replaces a step of it, marked tensors itself, or put a class of its own into a registry.
"""

from __future__ import annotations

from typing import Any, ClassVar

from bitwright.compat.onnxruntime.dynamic import dynamic_op_types
from bitwright.compat.onnxruntime.enums import QuantFormat
from bitwright.compat.onnxruntime.errors import raises_builtins
from bitwright.compat.onnxruntime.override_checks import check_overrides
from bitwright.compat.onnxruntime.peer import peer
from bitwright.compat.onnxruntime.peer_pass import QuantizerRequest
from bitwright.compat.onnxruntime.ranges import as_sketches
from bitwright.compat.onnxruntime.registries import foreign_op_types, selected_op_types
from bitwright.compat.onnxruntime.static_recipe import static_recipe
from bitwright.compat.onnxruntime.writing import store_parameters
from bitwright.compat.options import RecipeParts
from bitwright.errors import NothingQuantizedError
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.modes import quantize_model
from bitwright.plan import QuantPlan, TensorPlan
from bitwright.recipe import Recipe
from bitwright.support.wording import warn_user


class PlannedQuantizer:
    """Plans the whole model from the given ranges, where the peer's class goes node by node."""

    # What a client has marked, and the peer's pass would go on from.
    MARKS: ClassVar[tuple[str, ...]]

    request: QuantizerRequest
    written: QuantFormat | None
    """The format of the model; None is that of a dynamic one."""
    recipe: Recipe
    model: Any
    plan: QuantPlan | None = None

    def check(self) -> None:
        """Refuse overrides that the model has no place for, each in the peer's words."""
        request = self.request
        check_overrides(request.proto(), request.overrides, request.activation_qType)

    def recipe_parts(self) -> RecipeParts:
        """Return the fields of a recipe that the arguments ask for."""
        op_types = selected_op_types(self.written, self.request.op_types_to_quantize)
        if self.written is None:
            op_types = dynamic_op_types(op_types)
        parts = self.request.recipe_parts(op_types)
        for section in ("calibration", "smooth"):
            for name in [*getattr(parts, section)]:
                parts.drop(f"{section}.{name}", "ranges are given here")
        return parts

    def static_recipe(self) -> Recipe:
        """Return the recipe of a model with the given ranges."""
        types = self.request.activation_qType, self.request.weight_qType
        return static_recipe(self.recipe_parts(), self.written, *types)

    @raises_builtins()
    def quantize_model(self) -> Any:
        """Return the quantized model, which is in `model` from then on; `plan` says why."""
        request = self.request
        if request.op_types_to_quantize is not None and not request.op_types_to_quantize:
            warn_user("the model stays as it is: op_types_to_quantize is empty.")
            return self.model.model
        if self._needs_peer():
            return super().quantize_model()  # type: ignore[misc]
        ranges = Calibration(sketches=as_sketches(request.tensors_range))
        try:
            result = quantize_model(request.proto(), self.recipe, ranges)
        except NothingQuantizedError as error:
            warn_user(f"the model stays as it is: {error}")
            return self.model.model
        store_parameters(result.model, result.plan)
        self.plan, self.model = result.plan, peer("onnx_model").ONNXModel(result.to_proto())
        return self.model.model

    def _needs_peer(self) -> bool:
        """Whether something asks for the peer's own pass over the nodes."""
        if any(getattr(self, name) for name in self.MARKS):
            return True
        kinds = type(self).__mro__
        ours = next(kind for kind in kinds if kind.__module__.startswith(f"{__package__}."))
        peers = kinds[kinds.index(PlannedQuantizer) + 1]
        derived = {name for kind in kinds[: kinds.index(ours)] for name in vars(kind)}
        if any(hasattr(peers, name) for name in derived - {"__module__", "__doc__", "__init__"}):
            return True
        return bool(
            foreign_op_types(self.request.proto(), self.written, self.request.op_types_to_quantize)
        )

    def planned(self, tensor_name: str) -> TensorPlan | None:
        """Return what was planned for a tensor, or None, as before the model is quantized."""
        tensors = self.plan.tensors.values() if self.plan is not None else ()
        return next((plan for plan in tensors if plan.tensor == tensor_name), None)
