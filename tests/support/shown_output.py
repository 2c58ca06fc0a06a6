"""Run the examples of a page, and hold the output that it shows against what they print."""

from __future__ import annotations

import contextlib
import io
import re
import shlex

from bitwright.cli import main

BLOCK = re.compile(r"^```(bash|python|text)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
# Lines whose words depend on how fast the machine is, and on what else it does.
_CLOCKS = ("Time", "Verdict", "Next", "May I ship it?", "Is it faster?", "What next?", "time")


def run_page(page, folder):
    """Run the blocks of a page in a folder; return the page with what they print today.

    A text block behind a block of code shows lines of its output, in their order; a line of `...`
    stands for others. A line that nothing printed any more is an AssertionError.
    """
    names, parts, printed, last = {"__name__": "__example__"}, [], None, 0
    with contextlib.chdir(folder):
        for block in BLOCK.finditer(page):
            kind, code = block.groups()
            between = page[last : block.start()]
            shown = code
            if kind == "text" and printed is not None and not between.strip():
                shown = refresh(code, printed)
                printed = None
            elif kind != "text":
                printed = _run(kind, code, names)
            parts += [between, f"```{kind}\n{shown}```\n"]
            last = block.end()
    return "".join([*parts, page[last:]])


def _run(kind, code, names):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if kind == "python":
            exec(compile(code, "example", "exec"), names)
        for line in code.replace("\\\n", " ").splitlines() if kind == "bash" else ():
            words = shlex.split(line, comments=True)
            assert words[0] == "bitwright", line
            assert main(words[1:]) == 0, line
    return out.getvalue()


def refresh(shown, printed):
    """Return shown lines as they are printed today, matched by what stands before their figures."""
    lines, fresh = iter(printed.splitlines()), []
    for line in shown.splitlines():
        if line.strip() in ("", "..."):
            fresh.append(line)
            continue
        found = next((one for one in lines if label(one) == label(line)), None)
        assert found is not None, f"nothing printed {line!r} in:\n{printed}"
        fresh.append(found.rstrip())
    return "".join(f"{line}\n" for line in fresh)


def label(line):
    """Return what stands before the first colon or figure of a line."""
    return re.match(r"[^:\d]*", line.strip()).group().strip()


def plain(page):
    """Return a page without figures, and without the words of lines that tell of the clock."""
    masked = re.sub(r"\d[\d.,e+-]*|inf\b", "#", page)
    lines = (label(line) if label(line) in _CLOCKS else line for line in masked.splitlines())
    return [re.sub(r"\s+", " ", line).strip() for line in lines]
