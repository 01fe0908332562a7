"""Trains the models with the command line, and counts the alarms."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from alarms_bench import watched

FILE = Path(__file__).with_name("watched.py")

#: The first step that may be wrong: the long gradients of the beginning are no longer among the last 128.
FIRST_JUMP = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the runs came to.

    Attributes:
        sound: Sound runs.
        false_alarms: Alarms in them.
        jumps: Runs with a step whose gradient jumps.
        found: Those of them whose alarms are all at this step, and name the parameter.
    """

    sound: int
    false_alarms: int
    jumps: int
    found: int


def outcome(cases: Iterable[int], *, steps: int, seed: int, tell: Callable[[str], None]) -> Outcome:
    """Returns what the runs of some cases come to.

    Args:
        cases: Their places in `watched.CASES`.
        steps: Steps of a run.
        seed: Decides which step and which parameter.
        tell: Receives a line for each run.
    """
    random, numbers = Random(seed), list(cases)
    false_alarms = found = 0
    for number in numbers:
        name, optimizer = watched.CASES[number]
        target, jump = random.choice(list(watched.SHAPES[name])), random.randrange(FIRST_JUMP, steps)
        raised = _alarms(number, target, -1, steps)
        false_alarms += len(raised)
        tell(f"{name}, {optimizer}: {_listed(raised)}")
        raised = _alarms(number, target, jump, steps)
        is_found = bool(raised) and all((step, where) == (jump, target) for step, _, where in raised)
        found += is_found
        tell(f"{name}, {optimizer}, {target} at step {jump}: {_listed(raised)}{'' if is_found else ' WRONG'}")
    return Outcome(sound=len(numbers), false_alarms=false_alarms, jumps=len(numbers), found=found)


def _alarms(number: int, target: str, jump: int, steps: int) -> list[tuple[int, str, str]]:
    """Returns step, rule and name of the tensor of each alarm of a run."""
    command = [sys.executable, "-m", "gradscope", "train", f'{FILE}:Case({number}, "{target}")', "--json", "-q"]
    options = ["--data", f"{FILE}:Batches({number}, {jump})", "--optimizer", watched.CASES[number][1]]
    with tempfile.TemporaryDirectory() as folder:
        given = ["--steps", str(steps), "--on-alarm", "skip", "--keep-alarms", "1", "-o", str(Path(folder) / "run")]
        done = subprocess.run([*command, *options, *given], capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(done.stderr)
    return [(each["step"], each["rule"], each.get("name", "no tensor")) for each in json.loads(done.stdout)["alarms"]]


def _listed(raised: list[tuple[int, str, str]]) -> str:
    return "; ".join(f"{rule} of {name} at step {step}" for step, rule, name in raised) or "no alarm"
