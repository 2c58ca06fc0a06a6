"""The journal: one JSON line for each thing that was tried, so that a run resumes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Outcome = Literal[
    "passed",  # kept the contract
    "refused",  # a typed error says why
    "low",  # kept the contract but for its error, which is above the bar of its recipe
    "failed",  # broke the contract
    "not exported",  # the exporter's own failure
]


@dataclass(frozen=True, slots=True)
class Record:
    """What became of one verb on one exported model."""

    architecture: str
    exporter: str
    opset: int
    variant: str
    verb: str
    outcome: Outcome
    reason: str = ""
    sqnr: float | None = None
    seconds: float = 0.0
    source: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, int, str, str]:
        """What was tried, whichever source tried it."""
        return self.architecture, self.exporter, self.opset, self.variant, self.verb


class Journal:
    """A file of records; a later record of the same key takes the place of an earlier one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[tuple[str, str, int, str, str], Record] = {}
        for record in _read(path):
            self.records[record.key] = record

    def add(self, record: Record) -> None:
        """Keep a record, on disk at once."""
        self.records[record.key] = record
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")


def _read(path: Path) -> Iterator[Record]:
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        # A run that was killed may have left half a line.
        if line.endswith("}"):
            yield Record(**json.loads(line))


def source_version(package: Path) -> str:
    """Return a digest of a package's code: a result holds for this code only."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
