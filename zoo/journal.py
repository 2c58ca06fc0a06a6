"""The journal: one JSON line for each thing that was tried, so that a run resumes."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

RESULTS = "results.jsonl.gz"
"""The records of all runs whose table is in the repository."""

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
    """A file of records; a later record of the same key takes the place of an earlier one.

    What runs on other machines left in the file `before` is known, too.
    """

    def __init__(self, path: Path, before: Path | None = None) -> None:
        self.path = path
        self.records: dict[tuple[str, str, int, str, str], Record] = {}
        for known in (before, path):
            for record in () if known is None else _read(known):
                self.records[record.key] = record

    def add(self, record: Record) -> None:
        """Keep a record, on disk at once."""
        self.records[record.key] = record
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")


def write_records(records: Iterable[Record], path: Path) -> None:
    """Write records without what is of one machine only; the same ones give the same bytes."""
    lines = []
    for record in sorted(records, key=lambda record: record.key):
        row = asdict(record)
        del row["facts"], row["seconds"]
        lines.append(json.dumps({k: v for k, v in row.items() if v not in (None, "")}) + "\n")
    path.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


def _read(path: Path) -> Iterator[Record]:
    if not path.is_file():
        return
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    for line in content.decode().splitlines():
        # A run that was killed may have left half a line.
        if line.endswith("}"):
            yield Record(**json.loads(line))


def source_version(package: Path) -> str:
    """Return a digest of a package's code: a result holds for this code only."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
