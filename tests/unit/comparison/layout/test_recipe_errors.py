"""What is said of the steps of a map file that are wrong, or do not fit the tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradscope.comparison.layout.recipe_steps import Split, Sum
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.map_file import read_map
from gradscope.errors import UsageError


def test_a_step_that_does_not_fit_is_named_as_it_is_written_with_what_it_gets() -> None:
    recipe = Recipe(keys=("tensor/bias_hh", "tensor/bias_ih"), steps=(Sum(0), Split(0, 4)))
    with pytest.raises(UsageError) as caught:
        recipe.results([np.ones(64), np.ones(64)])
    assert caught.value.message.startswith(
        "cannot apply { split = 0, into = 4 } to 2 tensors of shape (1,) and (1,), made of tensor/bias_hh and "
        "tensor/bias_ih: "
    )


@pytest.mark.parametrize("step", ["{ split = '0' }", "{ sum = [0] }", "{ stacked = 0 }"])
def test_a_wrong_step_has_the_arguments_of_all(tmp_path: Path, step: str) -> None:
    rules = tmp_path / "map.toml"
    rules.write_text(f"[[rule]]\ncandidate = 'a'\nreference = 'b'\nsteps = [{step}]\n")
    with pytest.raises(UsageError, match="has an invalid step") as caught:
        read_map(rules)
    hint = caught.value.hint or ""
    assert "{ transpose = [AXIS, ...] }" in hint
    assert "{ split = AXIS, into = NUMBER or [SIZE, ...] }" in hint
    assert "{ sum = AXIS }" in hint
