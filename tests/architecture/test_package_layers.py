"""The layers of the package: which module imports which, which catches what, and how large a folder may grow."""

from __future__ import annotations

import ast
import operator
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
READ_SIDE = ("gradscope", "gradscope.dump", "gradscope.stats", "gradscope.comparison", "gradscope.presentation")


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
    found = {path.relative_to(PACKAGE).as_posix(): comparisons_with(kinds, nodes_of(path)) for path in sources(PACKAGE)}
    counted = {name: n for name, n in found.items() if n and not any(name.startswith(each) for each in exempt)}
    assert sum(counted.values()) <= MOST_KIND_COMPARISONS, counted


def test_jaxs_layout_of_operands_is_read_in_one_place() -> None:
    layout = {"cond_nconsts", "body_nconsts", "num_consts", "num_carry", "ft_in", "const_lengths"}
    readers = modules_where(PACKAGE, lambda node: isinstance(node, ast.Constant) and node.value in layout)
    assert readers == ["tracing/jaxpr/jaxcompat.py", "tracing/jaxpr/transfers.py"]


@pytest.mark.parametrize(
    ("code", "comparisons"),
    [
        ("kind == 'scan'", 1),
        ("kind in ('scan', 'while')", 1),
        ("LOOPS = ('scan', 'while')\nkind in LOOPS or other not in LOOPS", 2),
        ("LOOPS: Final = NAMES | frozenset({'scan'})\nkind in LOOPS", 1),
        ("def f():\n    loops = ['scan']\n    return kind in loops", 1),
        ("match kind:\n    case 'scan' | 'while': pass\n    case 'other': pass", 2),
        ("RULES = {'scan': rule}\nRULES[kind]", 0),
        ("REASONS = (Reason(name='opaque'),)\nreason in REASONS", 0),
        ("kind in LOOPS", 0),
        ("from gradscope.dump.manifest.layer_graph import _LOOPS as LOOPS\nkind in LOOPS", 1),
    ],
)
def test_a_comparison_with_a_kind_is_found_behind_a_name(code: str, comparisons: int) -> None:
    assert comparisons_with(frozenset({"scan", "while", "opaque"}), list(ast.walk(ast.parse(code)))) == comparisons


@pytest.mark.parametrize("module", READ_SIDE)
def test_the_read_side_starts_without_jax(module: str) -> None:
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


def frame_kinds() -> frozenset[str]:
    """The kinds of frames, read from where they are declared: to import the module would import JAX."""
    source = (PACKAGE / "tracing/jaxpr/jaxcompat.py").read_text(encoding="utf-8")
    declared = (node for node in ast.parse(source).body if isinstance(node, ast.AnnAssign))
    (kinds,) = (node.value for node in declared if ast.unparse(node.target) == "FrameKind" and node.value is not None)
    return frozenset(constants_in(kinds))


def constants_in(node: ast.AST) -> list[Any]:
    return [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]


def comparisons_with(strings: frozenset[str], nodes: Sequence[ast.AST]) -> int:
    """The comparisons in a module that have one of some strings on either side, or a name that was given to them."""
    compared = [node for node in nodes if isinstance(node, ast.Compare | ast.MatchValue)]
    behind = {name for node in nodes for name in (*names_given(node, strings), *names_imported(node, strings))}
    named = (any(isinstance(each, ast.Name) and each.id in behind for each in ast.walk(node)) for node in compared)
    direct = (not strings.isdisjoint(constants_in(node)) for node in compared)
    return sum(map(operator.or_, direct, named))


def names_imported(node: ast.AST, strings: frozenset[str]) -> list[str]:
    """The names that a statement imports from a module that gives them to some strings."""
    if not isinstance(node, ast.ImportFrom) or node.module is None:
        return []
    given = names_given_in(REPOSITORY / f"{node.module.replace('.', '/')}.py", strings)
    return [alias.asname or alias.name for alias in node.names if alias.name in given]


@cache
def names_given_in(path: Path, strings: frozenset[str]) -> frozenset[str]:
    nodes = nodes_of(path) if path.is_file() else []
    return frozenset(name for node in nodes for name in names_given(node, strings))


def names_given(node: ast.AST, strings: frozenset[str]) -> list[str]:
    """The names that a statement gives to some strings, or to a collection that has one of them."""
    match node:
        case ast.Assign(targets=targets, value=value) if holds(value, strings):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if holds(value, strings):
            return [name]
        case _:
            return []


def holds(value: ast.expr, strings: frozenset[str]) -> bool:
    """Whether a value is one of some strings, or a collection that has one, as far as its expression shows."""
    match value:
        case ast.Constant(value=constant):
            return constant in strings
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return any(holds(each, strings) for each in parts)
        case ast.Call(func=ast.Name(id="frozenset" | "set" | "tuple"), args=parts):
            return any(holds(each, strings) for each in parts)
        case ast.BinOp(left=left, right=right):
            return holds(left, strings) or holds(right, strings)
        case _:
            return False


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
