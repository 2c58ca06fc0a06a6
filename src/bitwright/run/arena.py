"""Memory that sessions of the runtime share, so that none asks the system for fresh pages.

A model that is run part by part gives large arrays that live until the next part has read them.
With memory of their own, every one of them is made of pages that the system has to clear first: an
eighth of the time of such a run. From one arena they take what others have given back.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

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
