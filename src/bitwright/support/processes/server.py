"""The server in a worker process, started as a script by `client.py`.

It imports the standard library and nothing of ours, so that what a worker measures of its process
is its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
import time
from typing import Any, TextIO

_SECONDS_BETWEEN_LOOKS = 1.0


def _end_with(client: int) -> None:
    """End this process when its client was killed, whatever it does: nobody reads the result."""
    while os.getppid() == client:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _load_worker(file: str) -> Any:
    """Return a new `Worker` of a file; of the package around it nothing is imported."""
    spec = importlib.util.spec_from_file_location("worker", file)
    assert spec is not None and spec.loader is not None
    module = sys.modules["worker"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Worker()


def _serve(requests: TextIO, replies: TextIO) -> None:
    """Run the called methods until the client closes its end."""
    first = json.loads(requests.readline())
    sys.path[:] = first["path"]
    worker, failure = None, None
    try:
        worker = _load_worker(first["file"])
    except Exception as error:  # noqa: BLE001 - the reply to every call
        failure = error
    for line in requests:
        request = json.loads(line)
        try:
            if failure is not None:
                raise failure
            method = getattr(worker, request["method"])
            reply = {"result": method(**request["arguments"])}
        except Exception as error:  # noqa: BLE001 - the client tells the user what it was
            reply = {"error": str(error) or type(error).__name__}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    # Whatever a library prints goes to the other stream; this one is for replies.
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _serve(sys.stdin, own)
