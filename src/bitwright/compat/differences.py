"""Differences between another tool and the package of its name here, as data.

Each package has its tables in its `differences.py`. The guides in `docs/` show them
(`python scripts/write_differences.py`), and the warnings about them say what the rows say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bitwright.support.notices import warn_user

__all__ = ["Difference", "as_table"]


@dataclass(frozen=True, slots=True)
class Difference:
    """What another tool does, what is done here instead, and why.

    >>> row = Difference("quantize", "fails", "is ignored", "nothing reads it", warns=True)
    >>> row.sentence("option 'x'")
    "option 'x' is ignored: nothing reads it."
    """

    name: str
    """The public name that it is about, below the package."""
    there: str
    here: str
    why: str
    warns: bool = False
    """Whether the caller is warned of it, in the words of this row."""

    def sentence(self, subject: str, because: str = "") -> str:
        """Return what is said of something that the difference is about."""
        return f"{subject} {self.here}: {because or self.why}."

    def warn(self, subject: str, because: str = "") -> None:
        """Warn that something is not as it would be there; `because` is a nearer reason."""
        warn_user(self.sentence(subject, because))


def as_table(rows: Iterable[Difference]) -> str:
    """Return differences as a table of a page.

    >>> print(as_table([Difference("gptq", "overwrites `H`", "copies it", "callers keep theirs")]))
    | name | there | here | why |
    |---|---|---|---|
    | `gptq` | overwrites `H` | copies it | callers keep theirs |
    """
    lines = ["| name | there | here | why |", "|---|---|---|---|"]
    for row in rows:
        here = f"{row.here}, with a warning" if row.warns else row.here
        lines.append(f"| `{row.name}` | {row.there} | {here} | {row.why} |")
    return "\n".join(lines)
