"""Open a model in another process first: by a few of them the runtime ends the process."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from pathlib import Path
from typing import Any

from bitwright.errors import ModelError
from bitwright.support.processes.client import WorkerLost, WorkerProcess

WORKER = Path(__file__).with_name("model_worker.py")
"""What opens, runs and times one model."""

CRASHES = {
    -getattr(signal, name)
    for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")
    if hasattr(signal, name)
} | {3, 0xC0000005, 0xC0000409}
"""How a process ends by an assertion or a wrong address; the last three are of Windows. One that
the system ended for its memory says nothing of the model."""

_CPU = ["CPUExecutionProvider"]
_workers: dict[int, WorkerProcess] = {}
"""The process that tries models for this one, by our number: a fork needs one of its own."""
_lock = threading.Lock()


def try_file(path: Path, name: str | None = None) -> None:
    """Open a model file in another process; that the runtime crashes by it is a ModelError.

    What it refuses there is a `WorkerError`. The process stays for the next file.
    """
    call_worker("open_once", path, name, providers=_CPU)


def call_worker(method: str, path: Path, name: str | None = None, **arguments: Any) -> None:
    """Do with a model file in another process what may end it; that is a ModelError."""
    with _lock:
        worker = _workers.get(os.getpid())
        if worker is None or not worker.is_alive:
            try:
                worker = _workers[os.getpid()] = WorkerProcess(WORKER)
            except OSError:
                return  # no process may be started here
            atexit.register(worker.close)
        try:
            worker.call(method, model=str(path.absolute()), **arguments)
        except WorkerLost as error:
            if error.code in CRASHES:
                raise ModelError(
                    f"ONNX Runtime crashes when it opens {name or repr(str(path))} (it {error}); "
                    "export the model again, or try another version of onnxruntime."
                ) from error
        except KeyboardInterrupt:
            worker.kill()  # its reply would be taken for that of the next call
            raise
