"""Imports run downward only: `cli, compat -> api -> jobs -> stages -> plan, recipe, targets,
run -> graph, data -> numerics -> support, errors`, and stages do not import each other. Read from
the source, not from a run, so that an import inside a function counts as well."""

import ast
from pathlib import Path

import pytest

import bitwright

ROOT = Path(bitwright.__file__).parent

STAGES = (
    "prepare",
    "equalize",
    "observe",
    "decide",
    "rounding",
    "learning",
    "emit",
    "verification",
    "assess",
)

# Highest first. A package may import lower levels and itself, and nothing beside it.
LEVELS = (
    ("__main__",),
    ("cli", "compat"),
    ("api",),
    ("jobs",),
    STAGES,
    ("decide.ops",),  # facts about operators, which every stage reads
    ("plan",),
    ("recipe",),
    ("targets", "run"),
    ("graph", "data", "demo"),
    ("numerics",),
    ("support",),
    ("errors", "_version"),
)
LEVEL_OF = {name: level for level, names in enumerate(LEVELS) for name in names}


class _Imports(ast.NodeVisitor):
    """Collects what a file imports, wherever it does; for type checkers only if asked to."""

    def __init__(self, for_type_checkers=False):
        self.found = []
        self._for_type_checkers = for_type_checkers

    def visit_If(self, node):
        if "TYPE_CHECKING" in ast.unparse(node.test) and not self._for_type_checkers:
            for other in node.orelse:
                self.visit(other)
        else:
            self.generic_visit(node)

    def visit_Import(self, node):
        self.found += [(node.lineno, alias.name) for alias in node.names]

    def visit_ImportFrom(self, node):
        assert node.level == 0, f"line {node.lineno}: relative imports hide the layer"
        self.found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]


def package_of(module):
    """Return the package of the house that a module, as `decide.ops.rule`, belongs to."""
    parts = module.split(".")
    packages = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((package for package in packages if package in LEVEL_OF), parts[0])


def module_of(path):
    """Return the module that a file holds, below the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path, **options):
    """Return (line, module) for each import of our own."""
    visitor = _Imports(**options)
    visitor.visit(ast.parse(path.read_text(encoding="utf-8")))
    return [
        (line, name.partition(".")[2] or "__init__")
        for line, name in visitor.found
        if name.partition(".")[0] == "bitwright"
    ]


def files():
    return [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


def breaks(importer, imported):
    """Return why one package may not import the other, or None."""
    if importer == imported:
        return None
    if imported == "__init__":
        return "imports the package itself, and with it everything"
    if imported not in LEVEL_OF:
        return f"imports {imported!r}, which has no level in this test"
    if LEVEL_OF[imported] < LEVEL_OF[importer]:
        return f"imports {imported!r}, which lies above {importer!r}"
    if LEVEL_OF[imported] == LEVEL_OF[importer]:
        return f"imports {imported!r}, which lies beside {importer!r}"
    return None


def test_every_package_of_the_house_has_a_level():
    assert {package_of(module_of(path)) for path in files()} <= LEVEL_OF.keys()


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_downward_only(path):
    importer = package_of(module_of(path))
    problems = [
        f"{path.relative_to(ROOT)}:{line} {problem}"
        for line, imported in imports_of(path)
        if (problem := breaks(importer, package_of(imported))) is not None
    ]
    assert not problems, "\n".join(problems)


def file_imports():
    """Return which of our own modules each module imports, for type checkers or to run."""
    known = {module_of(path): path for path in files()}

    def found(name):
        parts = name.split(".")
        names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        return next((module for module in names if module in known), None)

    return {
        module: {found(name) for _, name in imports_of(path, for_type_checkers=True)}
        - {module, None}
        for module, path in known.items()
    }


def find_circles(imports):
    """Return each set of modules that import each other in a circle (Tarjan's components)."""
    numbers, lowest, open_modules, circles = {}, {}, [], []

    def visit(module):
        numbers[module] = lowest[module] = len(numbers)
        open_modules.append(module)
        for other in sorted(imports[module]):
            if other not in numbers:
                visit(other)
            if other in open_modules:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == numbers[module]:
            circle = open_modules[open_modules.index(module) :]
            del open_modules[open_modules.index(module) :]
            if len(circle) > 1:
                circles.append(sorted(circle))

    for module in sorted(imports):
        if module not in numbers:
            visit(module)
    return circles


def test_no_modules_import_each_other_in_a_circle():
    assert find_circles(file_imports()) == []


def test_circles_are_found():
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set(), "e": {"f", "a"}, "f": {"e"}}
    assert find_circles(imports) == [["b", "c"], ["e", "f"]]


def test_the_top_folder_holds_only_what_every_package_has_there():
    names = {path.stem for path in ROOT.glob("*.py")}
    assert names <= {"__init__", "__main__", "_version", "errors", "plan"}


@pytest.mark.parametrize("part", ["graph", "data", "demo"])
def test_models_and_data_know_nothing_of_recipes_and_plans(part):
    for path in sorted((ROOT / part).rglob("*.py")):
        assert not {"plan", "recipe"} & {package_of(name) for _, name in imports_of(path)}, path


def test_the_top_module_imports_nothing_of_ours():
    assert imports_of(ROOT / "__init__.py") == []


@pytest.mark.parametrize(
    ("importer", "imported", "fine"),
    [
        ("cli", "api", True),
        ("api", "cli", False),
        ("emit", "decide", False),
        ("emit", "plan", True),
        ("plan", "emit", False),
        ("graph", "data", False),
        ("graph", "errors", True),
        ("data", "recipe", False),
        ("compat", "cli", False),
        ("decide", "__init__", False),
        ("emit", "decide.ops", True),
        ("decide.ops", "decide", False),
    ],
)
def test_the_rule_itself(importer, imported, fine):
    assert (breaks(importer, imported) is None) is fine


def test_imports_inside_functions_count_and_those_for_type_checkers_do_not(tmp_path):
    source = tmp_path / "sample.py"
    source.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from bitwright.api import quantize\n"
        "def work():\n    from bitwright import graph\n    import bitwright.plan\n"
    )
    assert [module for _, module in imports_of(source)] == ["graph", "plan"]
