"""The third proof: ResNet-50 in another framework agrees layer by layer, and a mistake in it is found where it is.

Every step is one that a user porting a model would take: a dump has what the JAX model does with a batch; the PyTorch
model runs with the weights and the batch in that dump and is captured, and the capture is saved with `numpy.savez` in
the JAX model's names and layout; `gradscope compare` judges. Of the sixteen blocks there are three, one of each kind,
and their variables are noise: those of a fresh model have norms that would hide mistakes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import gradscope as gs
from tests.oracle.proof.commands import Finished, gradscope
from tests.oracle.zoo import ZOO, in_float64
from tests.support.sampled import sampled

torch = pytest.importorskip("torch", reason="PyTorch is absent: the zoo's ResNet-50 was NOT compared with its twin")

from tests.oracle.frameworks import torch_resnet  # noqa: E402 - it imports torch

#: The stem and its four layers; blocks of ten and themselves; projections of two; pool, head and loss.
LAYERS = 5 + 3 * 11 + 2 * 2 + 3

#: Convolutions, each with its norm's scale and bias; the head's kernel and bias.
PARAMETERS = 12 * 3 + 2

#: What the twin has no counterpart of: it saves what it computed, and PyTorch's running variance is another estimate.
#: The label has no gradient in either; the dump records that by name, a plain file cannot.
ONE_SIDED = ("--allow-missing", "(input|state|aux)/.*|input_grad/label")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ported:
    """The JAX model's dump, and what the twin needs to run."""

    path: Path
    variables: Mapping[str, Any]
    batch: Mapping[str, Any]
    folder: Path

    def compared(self, change: Callable[[Any], None], *options: object) -> Finished:
        """Returns the result of `gradscope compare` for a changed twin."""
        twin = self.folder / f"{change.__name__}.npz"
        if not twin.exists():
            np.savez(twin, **torch_resnet.run(self.variables, self.batch, change=change))
        return gradscope("compare", self.path, twin, *ONE_SIDED, *options)


@pytest.fixture(scope="module")
def ported(tmp_path_factory: pytest.TempPathFactory) -> Ported:
    case, folder = ZOO["resnet50, short"], tmp_path_factory.mktemp("twins")
    path = folder / "run.npz"
    with in_float64():
        gs.save(path, gs.capture(case.loss, *case.arguments()))
    with np.load(path) as members:
        return Ported(
            path=path,
            variables={"params": nested(members, "param/"), **nested(members, "state/")},
            batch=nested(members, "input/"),
            folder=folder,
        )


def nested(members: Mapping[str, np.ndarray], prefix: str) -> dict[str, Any]:
    """Arrays by path as dictionaries in dictionaries."""
    tree: dict[str, Any] = {}
    for key in members:
        if key.startswith(prefix):
            *folders, name = key.removeprefix(prefix).split("/")
            place = tree
            for folder in folders:
                place = place.setdefault(folder, {})
            place[name] = members[key]
    return tree


def unchanged(_: Any) -> None:
    """The twin as it is."""


def with_another_epsilon(model: Any) -> None:
    model.get_submodule("stage1_block2.bn2").eps = 1e-3


def with_two_kernels_swapped(model: Any) -> None:
    one, other = (model.get_submodule(f"stage1_block{number}.conv2").weight.data for number in (1, 2))
    kept = one.clone()
    one.copy_(other)
    other.copy_(kept)


def without_a_gradient_through_the_shortcut(model: Any) -> None:
    model.get_submodule("stage1_block2.add").register_forward_pre_hook(
        lambda _, inputs: (inputs[0].detach(), inputs[1])
    )


def test_every_layer_agrees_forward_and_backward(ported: Ported) -> None:
    command = ported.compared(unchanged, "--json")
    assert command.status == 0, command.messages
    report = command.report
    assert report["verdict"] == "same"
    assert report["first_divergence"] == {}
    same = [row for row in report["rows"] if row["status"] == "same"]
    families = Counter(row["family"] for row in same)
    assert families == {
        "activation": LAYERS,
        "activation_grad": LAYERS,
        "param": PARAMETERS,
        "param_grad": PARAMETERS,
        "input_grad": 1,
        "aux": len(jax.tree.leaves(ported.variables["batch_stats"])),
    }


def test_with_noise_for_variables_they_agree_to_the_last_digits_and_the_verdict_is_a_sentence(ported: Ported) -> None:
    command = ported.compared(unchanged, "--tol", "1e-10")
    assert command.status == 0, command.messages
    assert command.output.startswith("same")


def test_in_pytorchs_own_names_and_layouts_every_layer_agrees_too(ported: Ported) -> None:
    """OIHW and NCHW, `weight` for kernels and scales: the tool finds out itself."""
    path = ported.folder / "as_it_is.npz"
    torch_resnet.captured(torch_resnet.twin(ported.variables), ported.batch, path)
    command = gradscope("compare", ported.path, path, "--allow-missing", "(state|aux)/.*", "--json")
    rows = {f"{row['family']}/{row['name']}": row for row in command.report["rows"]}
    assert command.status == 0, command.output
    kernel, image = rows["param/stage1_block1/conv1/kernel"], rows["activation/stage1_block1/conv1"]
    assert (kernel["matched_by"], kernel["made_by"]) == ("path", "transpose [2, 3, 1, 0]")
    assert image["made_by"] == "transpose [0, 2, 3, 1]"
    compared = Counter(row["family"] for row in rows.values() if row["status"] == "same")
    assert (compared["activation"], compared["param_grad"]) == (LAYERS, PARAMETERS)


@sampled(
    ("change", "forward"),
    [(with_another_epsilon, "stage1_block2/bn2"), (with_two_kernels_swapped, "stage1_block1/conv2")],
)
def test_a_mistake_in_the_twin_is_named_by_its_layer(
    change: Callable[[Any], None], forward: str, ported: Ported
) -> None:
    command = ported.compared(change, "--json")
    assert command.status == 1, command.messages
    assert command.report["verdict"] == "different"
    assert command.report["first_divergence"]["forward"] == forward
    assert forward in command.report["sentence"]


def test_a_mistake_in_the_backward_pass_only_is_distinguished_from_one_in_the_forward_pass(ported: Ported) -> None:
    command = ported.compared(without_a_gradient_through_the_shortcut, "--json")
    assert command.status == 1, command.messages
    assert command.report["first_divergence"] == {"backward": "stage1_block1/relu3"}
    assert command.report["sentence"].startswith("Backward only")
