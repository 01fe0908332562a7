"""`gradscope isolate`: a layer as a script that runs without gradscope, and tells right from wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.integration import models
from tests.integration.command import gradscope
from tests.support.reproduction import run

#: The last layer doubles what it gives, by a function whose rule may be wrong.
RIGHT = models.FORWARD.replace('return x @ variables["last"]["w"]', 'return 2 * x @ variables["last"]["w"]')
WRONG = models.FORWARD.replace('return x @ variables["last"]["w"]', 'return doubled(x) @ variables["last"]["w"]')


def reproduced(folder: Path, layer: str, dump: str, target: str) -> Path:
    """The script of a layer."""
    output = f"repro of {target} {layer}".replace("/", "-")
    done = gradscope("isolate", layer, dump, target, "-o", output, folder=folder)
    assert (done.status, done.errors) == (0, "")
    assert done.output.startswith(f"{output}/isolated.py  {layer}: ")
    return folder / output / "isolated.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`right.py` with its dump, and `wrong.py`, whose rule is wrong."""
    folder = tmp_path_factory.mktemp("repro")
    for name, forward in (("right.py", RIGHT), ("wrong.py", WRONG)):
        models.write(folder, models.source(more=models.WRONG_RULE).replace(models.FORWARD, forward), name)
    assert gradscope("dump", "right.py", "-o", "right.npz", folder=folder).status == 0
    return folder


@pytest.mark.slow
def test_a_right_layer_exits_0_on_what_the_dump_has(folder: Path) -> None:
    script = reproduced(folder, "last", "right.npz", "right.py")
    ran = run(script)
    assert ran.status == 0
    assert ran.errors.keys() == {("forward", "last"), ("vjp", "relu"), ("vjp", "w")}
    assert max(ran.errors.values()) < 1e-6
    assert ran.output.count("expected: the dump's") == 3
    assert "\nvjp      gradient of relu " in ran.output  # a layer that it reads, and not itself
    with np.load(script.with_suffix(".npz")) as arrays, np.load(folder / "right.npz") as dump:
        for name, key in {
            "input/relu": "activation/relu", "input/w": "param/last/w", "cotangent/d_last": "activation_grad/last",
            "forward/last": "activation/last", "vjp/relu": "activation_grad/relu", "vjp/w": "param_grad/last/w",
        }.items():  # fmt: skip
            np.testing.assert_array_equal(arrays[name], dump[f"{key}.npy"])


@pytest.mark.slow
def test_a_wrong_rule_exits_1_and_is_wrong_backward_only(folder: Path) -> None:
    ran = run(reproduced(folder, "last", "right.npz", "wrong.py"))
    assert ran.status == 1
    assert ran.errors["forward", "last"] < 1e-6
    assert ran.errors["vjp", "relu"] == pytest.approx(0.5)  # three times the gradient instead of twice
    assert ran.errors["vjp", "w"] < 1e-6


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("lasst right.npz right.py", "no layer is called lasst"),
        ("last absent.npz right.py", "absent.npz"),
        ("last right.npz mlp", "expected param/dense1/bias, param/dense1/kernel, param/dense2/bias and 5 more"),
        ("last right.npz right.py -o right.py", "right.py is not a folder"),
    ],
)
def test_what_cannot_be_reproduced_is_said_in_a_line(folder: Path, line: str, says: str) -> None:
    done = gradscope("isolate", *line.split(), folder=folder)
    assert done.status in (2, 3)
    assert says in done.lines[0]


@pytest.mark.slow
def test_a_dump_without_tensors_has_nothing_to_run_a_layer_on(folder: Path) -> None:
    made = gradscope("dump", "right.py", "--stats-only", "-o", "measured.npz", folder=folder)
    assert made.status == 0, made.errors
    for line in (
        ("isolate", "last", "measured.npz", "right.py", "-o", "measured"),
        ("compare", "measured.npz", "right.npz", "--isolate", "right.py"),
    ):
        done = gradscope(*line, folder=folder)
        assert done.status == 2
        assert "has statistics and no tensors" in done.lines[0]
        assert not (folder / "measured").exists()


def test_the_dump_is_kept_even_by_force(folder: Path) -> None:
    (folder / "own").mkdir()
    kept = (folder / "right.npz").read_bytes()
    (folder / "own/isolated.npz").write_bytes(kept)
    done = gradscope("isolate", "relu", "own/isolated.npz", "right.py", "-o", "own", "--force", folder=folder)
    assert done.status == 2
    assert "one of the files that are read" in done.lines[0]
    assert [path.read_bytes() for path in (folder / "own").iterdir()] == [kept]


@pytest.mark.slow
def test_a_reproduction_is_replaced_only_by_force(folder: Path) -> None:
    line = ("isolate", "relu", "right.npz", "right.py", "-o", "again")
    assert [gradscope(*line, *more, folder=folder).status for more in ((), (), ("--force",))] == [0, 2, 0]


def convolution(axes: str, kernel: str) -> str:
    """A target of one convolution, with its axes and those of its kernel in an order."""
    sizes = {"N": "size", "H": "5", "W": "4", "C": "2", "I": "2", "O": "3"}
    shape = ", ".join(sizes[axis] for axis in axes)
    kernel_shape = ", ".join({**sizes, "H": "3", "W": "3"}[axis] for axis in kernel)
    return f"""import jax
import jax.numpy as jnp


def init(key):
    return {{"conv": {{"w": jax.random.normal(key, ({kernel_shape}))}}}}


def batch(key, size):
    return {{"x": jax.random.normal(key, ({shape}))}}


def loss(variables, batch):
    with jax.named_scope("conv"):
        x = jax.lax.conv_general_dilated(
            batch["x"], variables["conv"]["w"], (1, 1), "SAME", dimension_numbers=("{axes}", "{kernel}", "{axes}")
        )
    return jnp.sin(x).sum()
"""


def test_a_layer_of_a_port_has_the_values_of_its_reference_in_its_own_layout(tmp_path: Path) -> None:
    original = convolution("NCHW", "OIHW").replace('named_scope("conv")', 'named_scope("conv2d")')
    (tmp_path / "nchw.py").write_text(original)
    (tmp_path / "nhwc.py").write_text(convolution("NHWC", "HWIO"))
    dumped = [("nchw.py", "-o", "nchw.npz"), ("nhwc.py", "--checkpoint", "nchw.npz", "--data", "x.npz")]
    assert gradscope("dump", *dumped[0], "--batch-size", "2", folder=tmp_path).status == 0
    with np.load(tmp_path / "nchw.npz") as reference:
        x, gradient = (reference[f"{family}/x.npy"].transpose(0, 2, 3, 1) for family in ("input", "input_grad"))
    np.savez(tmp_path / "x.npz", x=x)
    assert gradscope("dump", *dumped[1], "-o", "nhwc.npz", folder=tmp_path).status == 0

    refused = gradscope("isolate", "conv", "nchw.npz", "nhwc.py", folder=tmp_path)
    assert refused.status == 2
    assert "nhwc does not run on the arguments of the dump, which is one of nchw: " in refused.lines[0]
    assert "gradscope isolate LAYER PORT.npz TARGET --reference THIS.npz" in refused.errors

    # The layer has another name in the reference, and is found by either.
    line = ("isolate", "conv2d", "nhwc.npz", "nhwc.py", "--reference", "nchw.npz", "-o", "repro")
    done = gradscope(*line, folder=tmp_path)
    assert (done.status, done.errors) == (0, "")
    assert "isolated.py  conv: " in done.output
    assert "expected  3 of 3 arrays are the reference's" in done.output
    ran = run(tmp_path / "repro/isolated.py")
    assert ran.status == 0
    assert ran.output.count("expected: the reference's") == 3
    assert "the dump's" not in (tmp_path / "repro/isolated.py").read_text()
    with np.load(tmp_path / "repro/isolated.npz") as arrays:
        np.testing.assert_array_equal(arrays["input/x"], x)
        np.testing.assert_array_equal(arrays["vjp/x"], gradient)


TIED = """
import jax
import jax.numpy as jnp

def init(key):
    return {"w": jnp.linspace(-1.0, 1.0, 9).reshape(3, 3)}

def batch(key, size):
    return jax.random.normal(key, (size, 3))

def loss(variables, x):
    with jax.named_scope("first"):
        x = jnp.tanh(x @ variables["w"])
    with jax.named_scope("second"):
        return jnp.square(x @ variables["w"]).mean()
"""


def test_what_a_script_cannot_judge_is_said(tmp_path: Path) -> None:
    (tmp_path / "tied.py").write_text(TIED)
    assert gradscope("dump", "tied.py", "-o", "tied.npz", folder=tmp_path).status == 0
    done = gradscope("isolate", "first", "tied.npz", "tied.py", "-o", "repro", folder=tmp_path)
    assert "expected  2 of 3 arrays are the dump's, the others from a run of the layer" in done.output
    assert "unjudged  gradient of w: the dump does not have the term of this layer alone" in done.output


#: Examples take branches of their own; the rule of one of them is right, and wrong where its factor is another.
BRANCHES = """
import jax, jax.numpy as jnp

@jax.custom_vjp
def passed(x):
    return x

passed.defvjp(lambda x: (x, None), lambda _, cotangent: (1.0 * cotangent,))

def init(key):
    return {"w": jnp.linspace(-1.0, 1.0, 9).reshape(3, 3)}

def batch(key, size):
    return jax.random.normal(key, (size, 3))

def loss(variables, batch):
    def branch(x):
        with jax.named_scope("branch"):
            return passed(jnp.sin(x))

    def one(x):
        with jax.named_scope("dense"):
            x = x @ variables["w"]
        return jax.lax.cond(x.sum() > 0, branch, jnp.tanh, x)

    return jnp.square(jax.vmap(one)(batch)).mean()
"""


@pytest.mark.slow
def test_the_code_before_a_layer_comes_with_it_where_only_that_shows_the_fault(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(BRANCHES)
    (tmp_path / "wrong.py").write_text(BRANCHES.replace("1.0 * cotangent", "1.1 * cotangent"))
    assert gradscope("dump", "right.py", "-o", "right.npz", folder=tmp_path).status == 0
    assert run(reproduced(tmp_path, "branch", "right.npz", "right.py")).status == 0
    done = gradscope("isolate", "branch", "right.npz", "wrong.py", "-o", "repro", folder=tmp_path)
    assert "repro/isolated.py  before branch: 1 input, 1 output" in done.output
    assert (
        "inputs    no gradient that the dump has for what branch reads shows its error: the script has the code before "
        "it, too"
    ) in done.output
    assert run(tmp_path / "repro" / "isolated.py").status == 1
