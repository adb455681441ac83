"""Which tests call a public name: read off the tests' own code, nothing is run and nothing is kept by hand.

A test covers the names it mentions, and those of the tables and helpers of its file that it uses: `st.exp`,
`F.relu`, a method `x.exp` of what is no other library, `lib.exp` in a table of calls made with several
libraries, a name imported from the package, or one that stands as a string, `f"conv{k}d"` included, where
tests are parametrised. Files that go over all public names cover none.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.surface.entries import Entry, entries
from benchmarks.surface.twins import compared

TESTS = Path(__file__).parents[2] / "tests"
_TWINS = "contract/test_surface.py::test_a_function_equals_its_twins"
_ANY = ""
_OWNERS: dict[str, tuple[str, ...]] = {
    "st": ("math", "random", "transforms"), "stratal": ("math", "random", "transforms"), "lib": (_ANY,),
    "random": ("random",), "func": ("transforms",), "special": ("special",), "linalg": ("linalg",),
    "fft": ("fft",), "F": ("functional",), "functional": ("functional",), "nn": ("layers",),
    "optim": ("optimizers",), "lr_scheduler": ("schedules",), "distributions": ("distributions",),
    "metrics": ("metrics",), "models": ("models",),
}  # fmt: skip
_WHOLES = {"models": ("models",), "functional": ("layers",), "distributions": ("distributions",)}
_PACKAGES = ("stratal", "stratal.nn", "stratal.optim")
_OTHER_LIBRARIES = {"np", "numpy", "torch", "scipy", "sps", "math", "jax", "ml_dtypes"}
_ABOUT_ALL = {"test_fuzz_calls.py", "test_vmap_surface.py", "test_nn_bad_input.py"}
Mention = tuple[str, str]  # family ("" for any) and name


def covering(entry: Entry, folder: Path = TESTS) -> list[str]:
    """Return the tests that call an entry, `folder/file.py::function`; those of the fewest names come first.

    Parts of a model or distribution, and functions that layers apply, are covered by the tests of what they
    are in; a size of a model by those of its class; a metric by those of its function.
    """
    direct = _named(entry, folder)
    if compared(entry) and (folder / _TWINS.split("::")[0]).exists():
        direct.append(_TWINS)
    return direct or _through(entry, folder, set())


def _named(entry: Entry, folder: Path) -> list[str]:
    found = _mentions(folder)
    names = (entry.name, *entry.aliases)
    if entry.family == "metrics":
        names = (*names, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", entry.name).lower())
    tests = {t for name in names for family in (entry.family, _ANY) for t in found.get((family, name), ())}
    for pattern in _patterns(folder):
        if any(fnmatchcase(name, pattern) for name in names):
            tests |= found[_ANY, pattern]
    return [f"{file}::{test}" for _, file, test in sorted(tests)]


def _through(entry: Entry, folder: Path, seen: set[str]) -> list[str]:
    """Return the tests of the models and layers whose source uses an entry, or of what these are in."""
    seen.add(entry.path)
    wholes = [whole for whole in _wholes(entry) if whole.path not in seen]
    found = [test for whole in wholes for test in _named(whole, folder)]
    return found or [test for whole in wholes for test in _through(whole, folder, seen)]


def _wholes(entry: Entry) -> list[Entry]:
    families = _WHOLES.get(entry.family, ())
    word = re.compile(rf"\b{entry.name}\b")
    found = [e for e in _listed(families) if e.name != entry.name and word.search(_source(e.value))]
    if entry.family == "models" and inspect.isfunction(entry.value):
        here = entry.value.__module__
        found += [e for e in _listed(families) if inspect.isclass(e.value) and e.value.__module__ == here]
    return found


@lru_cache(maxsize=8)
def _listed(families: tuple[str, ...]) -> list[Entry]:
    return list(entries(families))


@lru_cache(maxsize=2048)
def _source(value: Any) -> str:
    bases = inspect.getmro(value) if inspect.isclass(value) else (value,)
    ours = [c for c in bases if c.__module__.startswith("stratal.") and c.__name__ != "Module"]
    try:
        return "".join(map(inspect.getsource, ours))
    except OSError:  # a class made while the package was loaded
        return ""


@lru_cache(maxsize=2)
def _mentions(folder: Path) -> dict[Mention, set[tuple[int, str, str]]]:
    """Return for every name the tests that mention it, each behind the number of names it mentions."""
    found: dict[Mention, set[tuple[int, str, str]]] = defaultdict(set)
    for file in sorted(folder.rglob("test_*.py")):
        if file.name not in _ABOUT_ALL:
            for test, mentions in _of_file(ast.parse(file.read_text())).items():
                for mention in mentions:
                    found[mention].add((len(mentions), str(file.relative_to(folder)), test))
    return found


def _of_file(tree: ast.Module) -> dict[str, set[Mention]]:
    """Return what each test of a file mentions, through the file's tables and helpers."""
    imported, owners = _imported(tree), _OWNERS | _aliases(tree)
    own: dict[str, tuple[set[Mention], set[str]]] = {}
    for statement in tree.body:
        for name in _defined(statement):
            own[name] = _direct(statement, imported, owners)
    return {name: _closure(name, own) for name in own if name.startswith("test_")}


def _defined(statement: ast.stmt) -> Iterable[str]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [n.id for t in targets if t is not None for n in ast.walk(t) if isinstance(n, ast.Name)]


@lru_cache(maxsize=2)
def _patterns(folder: Path) -> list[str]:
    return [name for _, name in _mentions(folder) if "*" in name]


def _imported(tree: ast.Module) -> set[str]:
    found = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    return {a.asname or a.name for n in found if str(n.module).startswith("stratal.") for a in n.names}


def _aliases(tree: ast.Module) -> dict[str, tuple[str, ...]]:
    """Return the families of packages a file imports under names of its own."""
    found = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module in _PACKAGES]
    named = {
        a.asname or a.name: _OWNERS.get("F" if a.name == "functional" else a.name)
        for n in found
        for a in n.names
    }
    return {name: families for name, families in named.items() if families}


def _direct(
    statement: ast.stmt, imported: set[str], owners: dict[str, tuple[str, ...]]
) -> tuple[set[Mention], set[str]]:
    """Return what a statement mentions by itself, and the names of the file it uses."""
    mentions: set[Mention] = set()
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute):
            owner = (
                node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            )
            unknown = () if owner in _OTHER_LIBRARIES else (_ANY if node.attr[0].isupper() else "math",)
            families = owners.get(owner, unknown)
            mentions |= {(family, node.attr) for family in families}
        elif isinstance(node, ast.JoinedStr):
            parts = [p.value if isinstance(p, ast.Constant) else "*" for p in node.values]
            pattern = "".join(map(str, parts))
            if len(pattern.replace("*", "")) > 3 and pattern.replace("*", "x").isidentifier():
                mentions.add((_ANY, pattern))
        elif isinstance(node, ast.Name):
            names.add(node.id)
            if node.id in imported:
                mentions.add((_ANY, node.id))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            mentions |= {(_ANY, word) for word in node.value.split() if word.isidentifier()}
    if isinstance(statement, ast.FunctionDef) and (text := ast.get_docstring(statement)):
        mentions -= {(_ANY, word) for word in text.split()}
    return mentions, names


def _closure(name: str, own: dict[str, tuple[set[Mention], set[str]]]) -> set[Mention]:
    seen: set[str] = set()
    todo, mentions = [name], set[Mention]()
    while todo:
        current = todo.pop()
        if current in seen or current not in own:
            continue
        seen.add(current)
        mentions |= own[current][0]
        todo += own[current][1]
    return mentions
