"""The pages next to the code are current: generated blocks, links, paths, names of tests, entries for what there is."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from gradscope import naming
from gradscope.comparison.pairing.matching import MatchedBy
from gradscope.dump.record import Reason

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted([*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md"), *REPOSITORY.glob("examples/*.md")])
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?!https?:)(?P<path>[^)#]*)(?:#(?P<anchor>[^)]*))?\)")
_PATH = re.compile(r"`((?:gradscope|models|tests|scripts|docs|examples)/[\w./-]+?)`")
_CITATION = re.compile(r"\bdocs/[\w/-]+\.md\b")
_TEST = re.compile(r"`(test_\w+)`")


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def relative(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


@pytest.fixture(scope="module")
def refreshed() -> Callable[[Path], str]:
    return runpy.run_path(str(REPOSITORY / "scripts" / "docs"))["refreshed"]


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=relative)
def test_generated_blocks_are_current(page: Path, refreshed: Callable[[Path], str]) -> None:
    assert refreshed(page) == text_of(page), "run scripts/docs"


def test_a_block_that_is_not_current_is_found(tmp_path: Path, refreshed: Callable[[Path], str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- generated: findings -->\n\nout of date\n\n<!-- end -->\nbehind\n")
    fresh = refreshed(page)
    assert fresh.startswith("before\n<!-- generated: findings -->\n\n| rule |")
    assert "`vanishing`" in fresh
    assert fresh.endswith("\n<!-- end -->\nbehind\n")


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=relative)
def test_no_code_of_a_docstring_slips_into_a_table(page: Path) -> None:
    assert [line for line in text_of(page).splitlines() if line.startswith("| ") and ">>>" in line] == []


def test_the_script_says_which_page_is_not_current() -> None:
    command = [sys.executable, str(REPOSITORY / "scripts" / "docs"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert list(broken_links(page)) == []


def broken_links(page: Path) -> Iterator[str]:
    for link in _LINK.finditer(text_of(page)):
        target = (page.parent / link["path"]).resolve() if link["path"] else page
        if not target.exists() or (link["anchor"] and link["anchor"] not in anchors(target)):
            yield link[0]


def anchors(page: Path) -> set[str]:
    """The anchors that a forge gives to headings, and those that the page has itself."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    made = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([^"]+)">', text_of(page)))


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    named = [path for path in _PATH.findall(text_of(page)) if "NAME" not in path]
    assert [path for path in named if not (REPOSITORY / path).exists()] == []


def test_every_law_has_the_test_that_the_page_names() -> None:
    named = set(_TEST.findall(text_of(DOCS / "architecture.md")))
    tests = "\n".join(text_of(path) for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert named
    assert {name for name in named if f"def {name}(" not in tests} == set()


def test_every_data_type_of_the_page_is_defined() -> None:
    (section,) = re.findall(r"^## Data types\n(.*?)^## ", text_of(DOCS / "architecture.md"), re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE))))
    source = "\n".join(text_of(path) for path in (REPOSITORY / "gradscope").rglob("*.py"))
    assert named
    assert {name for name in named if not re.search(rf"^class {name}\b", source, re.MULTILINE)} == set()


def test_every_page_that_the_source_cites_exists() -> None:
    sources = [*(REPOSITORY / "gradscope").rglob("*.py"), REPOSITORY / "pyproject.toml"]
    cited = {page for source in sources for page in _CITATION.findall(text_of(source))}
    assert cited
    assert {page for page in cited if not (REPOSITORY / page).is_file()} == set()


def test_the_site_has_every_page() -> None:
    listed = re.findall(r":\s+(\S+\.md)$", text_of(REPOSITORY / "mkdocs.yml"), re.MULTILINE)
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("format.md", set(get_args(Reason)) - {"captured"}),
        ("metrics.md", set(get_args(MatchedBy))),
        ("statistics.md", {*naming.FAMILIES}),
    ],
    ids=["reasons", "passes", "families"],
)
def test_a_reference_page_has_a_row_for_every_name(page: str, names: set[str]) -> None:
    rows = set(re.findall(r"^\| `([\w-]+)` \|", text_of(DOCS / "reference" / page), re.MULTILINE))
    assert names - rows == set()


def test_every_public_name_has_a_text_and_every_member_a_meaning() -> None:
    page = text_of(DOCS / "reference" / "python.md")
    names, bodies = re.findall(r"^### `(.+)`$", page, re.MULTILINE), re.split(r"^### .*$", page, flags=re.MULTILINE)[1:]
    without_code = [re.sub(r"```.*?```", "", body, flags=re.DOTALL) for body in bodies]
    assert [name for name, body in zip(names, without_code, strict=True) if not re.search(r"\w", body)] == []
    assert re.findall(r"^\| .*\|  \|$", page, re.MULTILINE) == []


def test_what_a_page_imports_from_a_package_of_gradscope_is_in_the_reference() -> None:
    pages = [page for page in PAGES if page.suffix == ".md" and page.name != "CHANGELOG.md"]
    found = {
        f"{module}.{name}"
        for page in pages
        for module, name in re.findall(r"^from (gradscope\.\S+) import (\w+)$", text_of(page), re.MULTILINE)
    }
    assert found != set()
    reference = text_of(DOCS / "reference" / "python.md")
    assert [name for name in sorted(found) if f"### `{name}`" not in reference] == []


def test_the_version_has_an_entry_in_the_changelog() -> None:
    changelog = text_of(REPOSITORY / "CHANGELOG.md")
    versions = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", changelog, re.MULTILINE)
    assert versions[0] == ("Unreleased", "")
    assert all(date for _, date in versions[1:])
    assert PYPROJECT["project"]["version"] in dict(versions)
    assert len(re.findall(r"^## ", changelog, re.MULTILINE)) == len(versions)
    kinds = set(re.findall(r"^### (.*)$", changelog, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_hooks_run_the_commands_of_the_check() -> None:
    steps = re.findall(r"^step (.*)$", text_of(REPOSITORY / "scripts" / "check"), re.MULTILINE)
    hooks = re.findall(r"^ +entry: (.*)$", text_of(REPOSITORY / ".pre-commit-config.yaml"), re.MULTILINE)
    assert hooks == [step for step in steps if "pytest" not in step]


def test_the_source_distribution_has_the_pages() -> None:
    included = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    top = {f"/{page.relative_to(REPOSITORY).parts[0]}" for page in PAGES}
    assert top - {*included} == set()
