"""The floors of the house: who may import whom, who may catch what, and how large a room may grow."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "gradscope"
MODELS = REPOSITORY / "models"
TESTS = REPOSITORY / "tests"
LONGEST_MODULE_LINES = 300
MOST_ENTRIES = 12
MOST_KIND_COMPARISONS = 20

#: A command and what does its work; a result and its report.
MIRRORS = frozenset({"isolate", "isolation", "recover", "verify"})
READ_WING = ("gradscope", "gradscope.dump", "gradscope.stats", "gradscope.comparison", "gradscope.presentation")


def test_import_linters_contracts_hold() -> None:
    run = python("from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache', '--no-logo'])")
    assert run.returncode == 0, run.stdout


def test_only_the_compatibility_module_touches_jax_extend() -> None:
    assert modules_where(PACKAGE, lambda node: mentions(node, "jax.extend")) == ["tracing/jaxpr/jaxcompat.py"]


def test_nothing_touches_jaxs_private_parts() -> None:
    assert modules_where(PACKAGE, lambda node: mentions(node, "jax._src")) == []
    assert modules_where(MODELS, lambda node: mentions(node, "jax._src")) == []


def test_only_the_error_boundary_keeps_every_exception_from_its_caller() -> None:
    assert modules_where(PACKAGE, keeps_everything) == ["cli/error_boundary.py"]


def test_models_import_nothing_of_gradscope() -> None:
    assert modules_where(MODELS, lambda node: mentions(node, "gradscope")) == []


def test_the_listing_of_every_folder_fits_on_half_a_screen() -> None:
    """The root lists the packages themselves, one for each layer of the architecture and what imports them."""
    listed = listings(PACKAGE, TESTS)
    del listed[PACKAGE]
    assert {str(folder): len(names) for folder, names in listed.items() if len(names) > MOST_ENTRIES} == {}


def test_a_listing_has_files_of_every_kind_and_folders_that_hold_some(tmp_path: Path) -> None:
    for name in ("a.py", "b.css", "c/d/e.js", "f/__pycache__/g.pyc", "__pycache__/h.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert listings(tmp_path) == {
        tmp_path: {"a.py", "b.css", "c"},
        tmp_path / "c": {"d"},
        tmp_path / "c" / "d": {"e.js"},
    }


def test_a_module_name_stands_twice_only_where_one_mirrors_the_other() -> None:
    stems = Counter(path.stem for path in sources(PACKAGE) if path.stem != "__init__")
    assert {stem for stem, times in stems.items() if times > 1} <= MIRRORS


def test_every_package_with_sub_packages_has_one_contract_on_their_layers() -> None:
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layered = [container for each in contracts["contracts"] for container in each.get("containers", ())]
    # The package itself has the contract on the floors, whose layers are absolute.
    packages = {path.parent for path in PACKAGE.rglob("__init__.py")} - {PACKAGE}
    nested = [dotted(package) for package in packages if any(map(is_package, package.iterdir()))]
    assert sorted(layered) == sorted(nested)


def test_no_module_is_longer_than_a_reader_can_hold() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources(PACKAGE, MODELS)}
    assert {path.name: lines for path, lines in lengths.items() if lines > LONGEST_MODULE_LINES} == {}


def test_control_flow_is_stated_once() -> None:
    """Analyses read the table of transfers; to ask for a kind of frame by name is to state again what it does."""
    exempt = {"tracing/jaxpr", "instrument/rewriting/frame_rules.py"}
    kinds = frame_kinds()
    found = {path.relative_to(PACKAGE).as_posix(): comparisons_with(kinds, path) for path in sources(PACKAGE)}
    counted = {name: n for name, n in found.items() if n and not any(name.startswith(each) for each in exempt)}
    assert sum(counted.values()) <= MOST_KIND_COMPARISONS, counted


@pytest.mark.parametrize("module", READ_WING)
def test_the_read_wing_starts_without_jax(module: str) -> None:
    run = python(f"import sys, {module}; print(sorted({{'jax', 'jaxlib'}} & sys.modules.keys()))")
    assert run.stdout == "[]\n", run.stderr


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import jax.extend.core", True),
        ("from jax.extend import core", True),
        ("from jax import extend", True),
        ("jax.extend.core.jaxpr_as_fun", True),
        ("import jax.extended", False),
        ("'jax.extend'", False),
    ],
)
def test_a_mention_is_an_import_or_an_attribute(code: str, found: bool) -> None:
    assert any(mentions(node, "jax.extend") for node in ast.walk(ast.parse(code))) == found


@pytest.mark.parametrize(
    ("handler", "kept"),
    [
        ("except: pass", True),
        ("except Exception: pass", True),
        ("except (OSError, BaseException) as error: raise ValueError from error", True),
        ("except BaseException: tidy(); raise", False),
        ("except (OSError, ValueError): pass", False),
    ],
)
def test_keeping_everything_is_recognised_in_all_its_forms(handler: str, kept: bool) -> None:
    tree = ast.parse(f"try: work()\n{handler}")
    assert any(keeps_everything(node) for node in ast.walk(tree)) == kept


def python(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter, in the checkout."""
    command = [sys.executable, "-P", "-c", program]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def is_package(path: Path) -> bool:
    return (path / "__init__.py").is_file()


def dotted(package: Path) -> str:
    return ".".join(package.relative_to(REPOSITORY).parts)


def listings(*roots: Path) -> dict[Path, set[str]]:
    """What each folder lists, whatever its kind; without what Python compiled, and folders that hold nothing else."""
    listed: dict[Path, set[str]] = {}
    for root in roots:
        for path in root.rglob("*"):
            parts = path.relative_to(root).parts
            if path.is_file() and "__pycache__" not in parts:
                for depth, name in enumerate(parts):
                    listed.setdefault(root.joinpath(*parts[:depth]), set()).add(name)
    return listed


def sources(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(folder.rglob("*.py"))


def modules_where(folder: Path, condition: Callable[[ast.AST], bool]) -> list[str]:
    """The modules, relative to the folder, in whose syntax tree some node meets the condition."""
    return [
        path.relative_to(folder).as_posix()
        for path in sources(folder)
        if any(condition(node) for node in nodes_of(path))
    ]


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """The nodes of a module's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def frame_kinds() -> set[str]:
    """The kinds of frames, read from where they are declared: to import the module would import JAX."""
    source = (PACKAGE / "tracing/jaxpr/jaxcompat.py").read_text(encoding="utf-8")
    declared = (node for node in ast.parse(source).body if isinstance(node, ast.AnnAssign))
    (kinds,) = (node.value for node in declared if ast.unparse(node.target) == "FrameKind" and node.value is not None)
    return set(constants_in(kinds))


def constants_in(node: ast.AST) -> list[Any]:
    return [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]


def comparisons_with(names: set[str], path: Path) -> int:
    """The comparisons in a module that have one of some strings on either side."""
    comparisons = (node for node in nodes_of(path) if isinstance(node, ast.Compare))
    return sum(not names.isdisjoint(constants_in(each)) for each in comparisons)


def mentions(node: ast.AST, module: str) -> bool:
    """Whether a node imports a module, something of it, or reaches it as an attribute."""
    names = [name for name in dotted_names(node) if name is not None]
    return any(name == module or name.startswith(f"{module}.") for name in names)


def dotted_names(node: ast.AST) -> list[str | None]:
    match node:
        case ast.Import(names=aliases):
            return [alias.name for alias in aliases]
        case ast.ImportFrom(module=source, names=aliases, level=0):
            return [f"{source}.{alias.name}" for alias in aliases]
        case ast.Attribute():
            return [dotted_name(node)]
        case _:
            return []


def dotted_name(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            before = dotted_name(value)
            return None if before is None else f"{before}.{attribute}"
        case _:
            return None


def keeps_everything(node: ast.AST) -> bool:
    """Whether a node catches any exception at all, and does not end by raising it again."""
    if not isinstance(node, ast.ExceptHandler):
        return False
    caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    everything = any(kind is None or dotted_name(kind) in ("Exception", "BaseException") for kind in caught)
    return everything and not (isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None)
