"""Count what makes the code hard to hold in one's head, and fail where it grew: `make check`.

`ratchet.toml` has the most that there may be of each. Lower a number when the count has fallen:
`python scripts/ratchet.py --lower`. Only a commit that says why may raise one.
"""

from __future__ import annotations

import ast
import re
import runpy
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bitwright"
LIMITS = ROOT / "ratchet.toml"
LONG_FUNCTION = 50  # lines, from `def` to the last one
LONG_FILE = 400  # lines


def count() -> dict[str, int]:
    """Return how much there is of each thing that `ratchet.toml` limits."""
    files = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    lengths = [text.count("\n") for text in files.values()]
    trees = {path: ast.parse(text) for path, text in files.items()}
    layers = runpy.run_path(str(ROOT / "tests" / "test_layers.py"))
    return {
        "lines": sum(lengths),
        "functions_over_50_lines": sum(
            function.end_lineno - function.lineno + 1 > LONG_FUNCTION
            for tree in trees.values()
            for function in functions(tree)
            if function.end_lineno is not None
        ),
        "files_over_400_lines": sum(length > LONG_FILE for length in lengths),
        "recipe_fields": recipe_fields(
            tree
            for path, tree in trees.items()
            if path.parent == SOURCE / "recipe" and path.name != "emulate.py"
        ),
        "public_names": (ROOT / "tests" / "public_surface.txt").read_text().count("\n"),
        "floors": len(layers["LEVELS"]),
        "circles": len(layers["find_circles"](layers["file_imports"]())),
    }


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield all functions and methods of a module."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return (node for node in ast.walk(tree) if isinstance(node, kinds))


def recipe_fields(trees: Iterable[ast.Module]) -> int:
    """Return the number of fields of all settings, inherited ones in each class that has them.

    A class that others extend is not counted by itself.
    """
    classes = {
        node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)
    }
    bases = {name: [ast.unparse(base) for base in node.bases] for name, node in classes.items()}

    def lineage(name: str) -> Iterator[str]:
        yield name
        for base in bases.get(name, ()):
            yield from lineage(base)

    extended = {base for names in bases.values() for base in names}
    fields = {
        (name, ast.unparse(line.target))
        for name in classes.keys() - extended
        if "Settings" in lineage(name)
        for ancestor in lineage(name)
        if ancestor in classes
        for line in classes[ancestor].body
        if isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line.annotation)
    }
    return len(fields)


def main() -> int:
    """Print every count beside its limit; return 1 where one is above it."""
    text = LIMITS.read_text(encoding="utf-8")
    limits: dict[str, int] = tomllib.loads(text)
    counts = count()
    assert limits.keys() == counts.keys(), f"{LIMITS.name} and this script name different counts"
    if "--lower" in sys.argv[1:]:
        for name, found in counts.items():
            text = re.sub(
                rf"^{name} = \d+", f"{name} = {min(found, limits[name])}", text, flags=re.M
            )
        LIMITS.write_text(text, encoding="utf-8")
        return 0
    print(
        "\n".join(f"{found:>7} {name} (at most {limits[name]})" for name, found in counts.items())
    )
    worse = [name for name, found in counts.items() if found > limits[name]]
    if worse:
        print(
            f"{', '.join(worse)}: more than {LIMITS.name} allows. Make room, or say why not there."
        )
    elif counts != limits:
        print("Less than before: keep it so with `python scripts/ratchet.py --lower`.")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
