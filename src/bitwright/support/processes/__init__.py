"""Worker processes: a client here calls methods of a server there, in lines of JSON."""

from bitwright.support.processes.client import WorkerError, WorkerLost, WorkerProcess

__all__ = ["WorkerError", "WorkerLost", "WorkerProcess"]
