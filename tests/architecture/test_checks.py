"""What runs before a commit is what `scripts/check` runs, without the tests."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_a_commit_is_checked_by_the_steps_of_the_check_but_for_the_tests() -> None:
    steps = re.findall(r"^step (.+)$", (REPOSITORY / "scripts/check").read_text(encoding="utf-8"), re.MULTILINE)
    hooks = (REPOSITORY / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"^ +entry: (.+)$", hooks, re.MULTILINE) == steps[:-1]
    assert "pytest" in steps[-1]
