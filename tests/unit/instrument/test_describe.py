"""What a developer of the engine sees of a model: frames, layers, sites and the plan as text."""

from __future__ import annotations

import pytest

from gradscope.instrument.describe import describe_target, main


def sections(text: str) -> dict[str, list[str]]:
    """The lines of each table below its heading, by title."""
    blocks = [block.splitlines() for block in text.split("\n\n")[1:]]
    return {lines[0]: lines[2:] for lines in blocks}


def words(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines]


@pytest.mark.slow
def test_a_small_model_is_reported_value_by_value() -> None:
    found = sections(describe_target("mlp", operations=False, batch_size=4))
    assert list(found) == ["Frames (7)", "Layers (6)", "Sites (6)", "Plan (6)"]
    layers = {line[0]: line for line in words(found["Layers (6)"])}
    assert list(layers) == ["dense1", "relu1", "dense2", "relu2", "dense3", "loss"]
    assert layers["relu1"][3] == layers["dense1"][4]  # what it reads is what the layer before it makes
    assert "dense1/kernel, dense1/bias" in " ".join(layers["dense1"])
    plan = words(found["Plan (6)"])
    assert [line[1:3] for line in plan[:5]] == [[layers[name][4], name] for name in list(layers)[:5]]
    assert plan[5][2:] == ["loss", "float32[]", "yes"]
    assert [line[3:] for line in plan[:2]] == [["float32[4,32]", "yes"]] * 2


def test_loops_and_checkpoints_are_frames_and_leading_axes() -> None:
    found = sections(describe_target("transformer", operations=False, batch_size=2))
    frames = words(next(lines for title, lines in found.items() if title.startswith("Frames")))
    kinds = {line[2]: line for line in frames[1:]}
    assert kinds["scan"][4:6] == ["4", "block[*]"]
    assert " ".join(kinds["scan"][7:]) == "1 carry, 10 slice 1 carry"
    assert kinds["remat"][1].split(":")[0] == kinds["scan"][0]
    plan = next(lines for title, lines in found.items() if title.startswith("Plan"))
    (query,) = [line.split() for line in plan if " block[*]/attn/query " in line]
    assert query[3:] == ["float32[4,2,64,4,32]", "yes"]


def test_operations_are_more_sites() -> None:
    few, many = (describe_target("mlp", operations=each, batch_size=2) for each in (False, True))
    assert "\nSites (6)\n" in few
    assert " dense1/dot_general " in many


def test_the_command_prints_it_and_an_error_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["linear_regression", "--batch-size", "3"]) == 0
    assert capsys.readouterr().out.count("\n\n") == 4
    assert main(["nothing"]) == 2
    assert capsys.readouterr() == ("", "there is no file, module or zoo model called 'nothing'\n")
