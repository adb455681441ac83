"""The shape of the package: dependencies point down the tiers of the design and never in a circle."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

import stratal

PACKAGE = Path(stratal.__file__).parent
TIERS = [
    {"base"},
    {"engine", "graph", "loops"},
    {"ops"},
    {"autodiff", "batching", "discover", "optimize", "schedule", "memory", "parallel"},
    {"codegen", "runtime", "search"},
    {"plan"},
    {"compiler", "explorer"},
    {"tensor"},
    {"data", "deferred", "fft", "formats", "linalg", "metrics", "nn", "special", "te"},
    {"distributions", "models", "optim"},
    {"train", "auto", "compress", "serve", "amp", "func", "distributed"},
    {"forecast", "inspect", "compat", "integrations"},
    {"tune"},
    {"stratal"},  # the package itself: the public names
    {"cli"},
    {"__main__"},
]
TIER = {folder: tier for tier, folders in enumerate(TIERS) for folder in folders}


def modules() -> dict[str, Path]:
    """Return every module of the package by dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("stratal", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def folder(module: str) -> str:
    """Return the tier folder a module belongs to; `stratal` for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "stratal"


class Imports(ast.NodeVisitor):
    """Collects what a module imports, at any depth: at run time, or for types alone, too."""

    def __init__(self, module: str, path: Path, known: dict[str, Path], for_types: bool) -> None:
        self.for_types = for_types
        self.package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        self.known = known
        self.found: list[tuple[str, int]] = []
        self.visit(ast.parse(path.read_text(encoding="utf-8")))

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test) and not self.for_types:
            for child in node.orelse:
                self.visit(child)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found += [(a.name, node.lineno) for a in node.names if a.name.split(".")[0] == "stratal"]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        source = node.module or ""
        if node.level:
            base = self.package.split(".")
            source = ".".join(base[: len(base) - node.level + 1] + ([source] if source else []))
        if source.split(".")[0] != "stratal":
            return
        for alias in node.names:
            submodule = f"{source}.{alias.name}"
            self.found.append((submodule if submodule in self.known else source, node.lineno))


@functools.cache
def edges(for_types: bool = False) -> dict[str, list[tuple[str, int]]]:
    known = modules()
    return {module: Imports(module, path, known, for_types).found for module, path in known.items()}


def cycles(graph: dict[str, list[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def connect(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in graph.get(module, []):
            if target not in index:
                connect(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            component = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(component) > 1 or module in graph.get(module, []):
                found.append(sorted(component))

    for module in graph:
        if module not in index:
            connect(module)
    return found


def test_every_folder_of_the_package_has_a_tier() -> None:
    assert {folder(m) for m in modules()} <= set(TIER)


@pytest.mark.quick
def test_a_folder_imports_only_from_tiers_below_it_and_never_from_a_sibling() -> None:
    wrong = [
        f"{module}:{line} imports {target}"
        for module, imports in edges().items()
        for target, line in imports
        if folder(target) != folder(module) and TIER[folder(target)] >= TIER[folder(module)]
    ]
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other_in_a_circle_not_even_inside_functions() -> None:
    graph = {module: [target for target, _ in imports] for module, imports in edges().items()}
    assert cycles(graph) == []


def test_no_modules_of_tensors_know_each_other_in_a_circle_not_even_for_their_types() -> None:
    graph = {
        module: [target for target, _ in imports]
        for module, imports in edges(for_types=True).items()
        if folder(module) == "tensor"
    }
    assert cycles(graph) == []


def test_the_folders_of_tensors_know_each_other_in_one_direction() -> None:
    def part(module: str) -> str:
        parent, _, name = module.removeprefix("stratal.tensor").strip(".").partition(".")
        return parent or name

    graph: dict[str, list[str]] = {}
    for module, imports in edges(for_types=True).items():
        if folder(module) == "tensor":
            own = part(module)
            found = [part(target) for target, _ in imports if folder(target) == "tensor"]
            graph.setdefault(own, []).extend(name for name in found if name != own)
    assert {"capture", "composites"} <= set(graph)
    assert cycles(graph) == []


def test_imports_for_types_are_edges_where_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("if TYPE_CHECKING:\n    from stratal.base import dims\n", encoding="utf-8")
    known = {"stratal.base.dims": path}
    assert Imports("stratal.tensor.x", path, known, for_types=True).found == [("stratal.base.dims", 2)]
    assert Imports("stratal.tensor.x", path, known, for_types=False).found == []


def test_the_cycle_finder_finds_a_cycle() -> None:
    assert cycles({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}) == [["a", "b", "c"]]
