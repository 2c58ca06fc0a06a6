"""Sessions: models that are open in ONNX Runtime; its errors become one sentence."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper

from bitwright.errors import ModelError, TargetError, did_you_mean
from bitwright.run.opening import WITHOUT_PASSES_ENTRY, open_in_runtime, runtime_reason
from bitwright.support import Array, default_threads

# A model that is run part by part gives large arrays that live until the next part has read them.
# With memory of their own, each is made of pages that the system has to clear first: an eighth of
# the time of such a run. From one arena they take what others have given back.
_SHRINK_ENTRY = "memory.enable_memory_arena_shrinkage"


def share_arena(options: ort.SessionOptions) -> None:
    """Let a session take its memory from the arena of this process."""
    _make_arena()
    options.add_session_config_entry("session.use_env_allocators", "1")


def give_back_memory() -> None:
    """Give what nobody uses of the arena back to the system, if there is one."""
    if not _make_arena.cache_info().currsize:
        return
    session = _idle_session()
    # Both ends of the run lie elsewhere: what it took from the arena would keep a region of it.
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.zeros(1, np.float32))
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32)))
    options = ort.RunOptions()
    options.add_run_config_entry(_SHRINK_ENTRY, "cpu:0")
    session.run_with_iobinding(binding, options)


@cache
def _make_arena() -> None:
    kind = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    no_limit, as_requested, by_default = 0, 1, -1
    ort.create_and_register_allocator(
        kind, ort.OrtArenaCfg(no_limit, as_requested, by_default, by_default)
    )


@cache
def _idle_session() -> ort.InferenceSession:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "idle", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    share_arena(options)
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


Level = Literal["disabled", "basic", "extended", "all"]
Arena = Literal["shared"] | bool

# 4 is "fatal only": its errors reach the user as our exceptions, and once is enough.
_LOG_SEVERITY = 4

_LEVELS = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}

_OPTIMIZED_DATA_ENTRY = "session.optimized_model_external_initializers_file_name"
_NO_INTEGERS_ENTRY = "session.disable_quant_qdq"
_ROUNDING_PASS = "WeightBiasQuantization"
_OPTIMIZED_LIMIT_ENTRY = "session.optimized_model_external_initializers_min_size_in_bytes"


class Session:
    """A model that is open in ONNX Runtime.

    `level` is the graph optimization ("all" is the runtime's default), `threads` None means all
    cores (on a worker of a cluster one), `providers` None means the CPU. The memory arena is off
    because it never gives memory back; a "shared" one is that of the process (`share_arena`). With
    an arena, threads wait in a loop, as the runtime lets them: they answer faster, and take the
    cores from whatever else works. The runtime writes the graph that it made of the model to the
    file `optimized_to`, and the times of all nodes to files named `profile_to` and more. `entries`
    are the runtime's own session options by name. Between quantized activations the runtime makes
    8-bit weights of float ones, with scales of its own; `float_weights` keeps it from that,
    `as_written` also from merging operators with the quantizers around them.
    """

    def __init__(  # noqa: PLR0913 - options of the runtime's sessions
        self,
        model: ir.Model | onnx.ModelProto | str | os.PathLike[str],
        *,
        level: Level = "all",
        threads: int | None = None,
        providers: Sequence[str] | None = None,
        memory_arena: Arena = False,
        optimized_to: Path | None = None,
        profile_to: Path | None = None,
        entries: Mapping[str, str] | None = None,
        float_weights: bool = False,
        as_written: bool = False,
    ) -> None:
        """Open a model, or raise a ModelError with the runtime's reason."""
        chosen = checked_providers(providers)
        options = _make_options(level, threads, memory_arena)
        _write_to(options, optimized_to, profile_to)
        own = {WITHOUT_PASSES_ENTRY: _ROUNDING_PASS} if float_weights else {}
        own |= {_NO_INTEGERS_ENTRY: "1"} if as_written else {}
        for name, value in {**(entries or {}), **own}.items():
            options.add_session_config_entry(name, value)
        without = [_ROUNDING_PASS] if float_weights else []
        self.runtime = open_in_runtime(model, options, chosen, without)
        """The runtime's own session, as users and their metrics know it."""
        self.inputs = tuple(value.name for value in self.runtime.get_inputs())
        self.outputs = tuple(value.name for value in self.runtime.get_outputs())
        kinds = [value.type for value in self.runtime.get_outputs()]
        self._gives_tensors = hasattr(self.runtime, "run_with_ort_values") and all(
            kind.startswith("tensor(") and kind != "tensor(string)" for kind in kinds
        )

    def run(
        self, feeds: Mapping[str, Array], wanted: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Run one batch and return the outputs by name, without copying them out of the runtime."""
        names = self.outputs if wanted is None else wanted
        try:
            if self._gives_tensors and not any(
                np.asarray(array).dtype.kind in "OSU" for array in feeds.values()
            ):
                # `order` instead of ascontiguousarray: a scalar would get one dimension by that.
                values = {
                    name: ort.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))
                    for name, array in feeds.items()
                }
                results = self.runtime.run_with_ort_values(list(names), values)
                return {name: value.numpy() for name, value in zip(names, results, strict=True)}
            return dict(zip(names, self.runtime.run(list(names), dict(feeds)), strict=True))
        except Exception as error:
            raise ModelError(f"the model does not run: {runtime_reason(error)}") from error


def open_plainly(
    model: ir.Model | str | os.PathLike[str], providers: Sequence[str] | None = None
) -> Session:
    """Open a model without optimizations, which computes as it is written, where that is possible.

    Of some operators the runtime has kernels in fused form only.
    """
    try:
        return Session(model, level="disabled", providers=providers)
    except ModelError:
        return Session(model, providers=providers)


def checked_providers(providers: Sequence[str] | None) -> list[str]:
    """Return the execution providers to use, or say which of them cannot be."""
    if providers is None:
        return ["CPUExecutionProvider"]
    if isinstance(providers, str) or not all(isinstance(name, str) for name in providers):
        raise TargetError(
            f"execution providers are a list of names such as 'CPUExecutionProvider', "
            f"not {providers!r}."
        )
    available = ort.get_available_providers()
    for name in providers:
        if name not in available:
            known = ort.get_all_providers()
            if name in known:
                raise TargetError(
                    f"the installed onnxruntime has no {name}; install the build that has it, or "
                    f"use one of {', '.join(available)}."
                )
            raise TargetError(f"unknown execution provider {name!r}.{did_you_mean(name, known)}")
    return list(providers)


def _make_options(level: str, threads: int | None, memory_arena: Arena) -> ort.SessionOptions:
    if level not in _LEVELS:
        raise TargetError(f"unknown optimization level {level!r}.{did_you_mean(level, _LEVELS)}")
    options = ort.SessionOptions()
    options.log_severity_level = _LOG_SEVERITY
    options.graph_optimization_level = _LEVELS[level]
    options.enable_cpu_mem_arena = bool(memory_arena)
    if memory_arena == "shared":
        share_arena(options)
    if not memory_arena:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    threads = default_threads() if threads is None else threads
    if threads is not None:
        options.intra_op_num_threads = threads
    return options


def _write_to(
    options: ort.SessionOptions, optimized_to: Path | None, profile_to: Path | None
) -> None:
    """Let a session write the graph that it makes of the model, and the times of its nodes."""
    if optimized_to is not None:
        options.optimized_model_filepath = str(optimized_to)
        options.add_session_config_entry(_OPTIMIZED_DATA_ENTRY, f"{optimized_to.name}.data")
        options.add_session_config_entry(_OPTIMIZED_LIMIT_ENTRY, str(1 << 20))
    if profile_to is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_to)
