"""What blocks learned, on disk: finished blocks survive an interruption."""

from __future__ import annotations

import msgspec

from bitwright.errors import DataError
from bitwright.jobs.fine_tuning.block import BlockReport, Learned
from bitwright.rounding.store import JobFolder
from bitwright.support.files import write_file

__all__ = ["LearnedStore"]


class LearnedStore(JobFolder):
    """A folder with a file for each finished block; one without a path vanishes when closed.

    >>> with LearnedStore() as store:
    ...     store.put("0 conv", Learned(BlockReport("conv", 1, kept=True)))
    ...     "0 conv" in store, store.get("0 conv").report.first
    (True, 'conv')
    """

    @staticmethod
    def block_name(index: int, first: str) -> str:
        """Return what a block is kept under: its place, and the name of its first node."""
        return f"{index} {first}"

    def put(self, name: str, learned: Learned) -> None:
        """Keep a block: all of it, or nothing."""
        from safetensors.numpy import save

        tensors = {f"constant {key}": array for key, array in learned.constants.items()}
        tensors |= {f"scale {key}": array for key, array in learned.scales.items()}
        report = msgspec.json.encode(learned.report).decode()
        write_file(self.path(name), save(tensors, metadata={"report": report}))

    def get(self, name: str) -> Learned:
        """Return a block, read from its file."""
        from safetensors import SafetensorError, safe_open

        path = self.path(name)
        found: dict[str, dict[str, object]] = {"constant": {}, "scale": {}}
        try:
            with safe_open(path, framework="numpy") as file:
                report = msgspec.json.decode(file.metadata()["report"], type=BlockReport)
                for key in file.keys():  # noqa: SIM118
                    kind, _, tensor = key.partition(" ")
                    found[kind][tensor] = file.get_tensor(key)
        except (SafetensorError, msgspec.DecodeError, KeyError, TypeError) as error:
            raise DataError(
                f"{str(path)!r} is no finished block; delete it to learn that block again."
            ) from error
        return Learned(report, found["constant"], found["scale"])  # type: ignore[arg-type]
