"""Model files for tests of the command line: one that is right, and ways to be wrong, each one edit away from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: Three layers by name, a batch of one leaf, one line for each role. Every command that runs it lowers a program for
#: `init` and one for `batch`: sines of a key's number take a tenth of what `jax.random.normal` does.
INIT = """
def init(key):
    return {"first": {"w": jnp.sin(numbers(key, 6)).reshape(3, 2)}, "last": {"w": jnp.ones((2, 1))}}
"""
BATCH = """
def batch(key, size=4):
    return {"x": jnp.sin(numbers(key, 3 * size)).reshape(size, 3)}
"""
FORWARD = """
def forward(variables, batch):
    with jax.named_scope("first"):
        x = batch["x"] @ variables["first"]["w"]
    with jax.named_scope("relu"):
        x = jax.nn.relu(x)
    with jax.named_scope("last"):
        return x @ variables["last"]["w"]
"""
LOSS = """
def loss(variables, batch):
    return forward(variables, batch).mean()
"""
#: A function whose differentiation rule says three where two would be right.
WRONG_RULE = """
@jax.custom_vjp
def doubled(x):
    return 2 * x

doubled.defvjp(lambda x: (2 * x, None), lambda _, g: (3 * g,))
"""
IMPORTS = """import jax
import jax.numpy as jnp

def numbers(key, count):
    first = (jax.random.key_data(key)[-1] % 997).astype(float)
    return jnp.full(count, first) + 2.4 * jnp.arange(1.0, count + 1)
"""


def source(*, init: str = INIT, batch: str = BATCH, loss: str = LOSS, more: str = "") -> str:
    """The text of a model file."""
    return "\n".join((IMPORTS, more, init, batch, FORWARD, loss))


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A model file that is refused.

    Attributes:
        text: What is in it.
        says: What the first line of the message says.
        shows: The user's own line that is shown; "" where there is none to show.
    """

    text: str
    says: str
    shows: str = ""


def _loss(body: str, more: str = "") -> str:
    lines = "\n    ".join(body.splitlines())
    return source(loss=f"def loss(variables, batch):\n    {lines}\n", more=more)


BROKEN = {
    "does not parse": Broken(text="def init(key:\n", says="SyntaxError", shows="def init(key:"),
    "imports what is not there": Broken(
        text=source(more="import no_such_package"),
        says="importing model.py: ModuleNotFoundError: No module named 'no_such_package'",
        shows="import no_such_package",
    ),
    "fails while it is imported": Broken(
        text=source(more="ratio = 1 / 0"), says="ZeroDivisionError: division by zero", shows="ratio = 1 / 0"
    ),
    "ends the process": Broken(text="import sys\nsys.exit(0)\n", says="SystemExit: 0", shows="sys.exit(0)"),
    "has no init": Broken(text=source(init=""), says="model has no init: a model has init(key), batch(key, size)"),
    "has no batch": Broken(text=source(batch=""), says="model has no batch: a model has"),
    "has no loss": Broken(text=source(loss=""), says="model has no loss: a model has"),
    "has a batch of another signature": Broken(
        text=source(batch="def batch(key):\n    return {}\n"), says="batch takes (key), expected batch(key, size)"
    ),
    "fails in init": Broken(
        text=source(init='def init(key):\n    return open("weights.npz")\n'),
        says="init of model: FileNotFoundError",
        shows='return open("weights.npz")',
    ),
    "fails in batch": Broken(
        text=source(batch='def batch(key, size):\n    raise ValueError("no data today")\n'),
        says="batch of model: ValueError: no data today",
        shows='raise ValueError("no data today")',
    ),
    "has a batch with a text in it": Broken(
        text=source(batch='def batch(key, size):\n    return {"x": jnp.ones((size, 3)), "name": "cat"}\n'),
        says="batch()['name'] is of type str, expected an array or a number",
    ),
    "fails in loss": Broken(
        text=_loss('x = variables["first"]["w"]\nreturn (x @ batch["x"]).sum()'),
        says="loss of model: TypeError: dot_general requires contracting dimensions to have the same shape",
        shows='return (x @ batch["x"]).sum()',
    ),
    "branches on a value": Broken(
        text=_loss('x = batch["x"].sum()\nif x > 0:\n    return x\nreturn -x'),
        says="loss of model: TracerBoolConversionError",
        shows="if x > 0:",
    ),
    "calls itself without end": Broken(
        text=_loss("return loss(variables, batch)"),
        says="RecursionError",
        shows="return loss(variables, batch)",
    ),
    "returns a vector": Broken(text=_loss("return forward(variables, batch)"), says="must be a scalar, and has shape"),
    "returns an integer": Broken(
        text=_loss("return (forward(variables, batch) > 0).sum()"), says="must be a real floating-point number"
    ),
    "returns a complex number": Broken(
        text=_loss("x = forward(variables, batch).sum()\nreturn jax.lax.complex(x, x)"),
        says="must be a real floating-point number",
    ),
    "returns nothing": Broken(text=_loss("forward(variables, batch)"), says="returned NoneType"),
    "returns a text": Broken(text=_loss('return "loss"'), says="returned a value of type <class 'str'>"),
    "returns three things": Broken(text=_loss("return jnp.ones(()), 1, 2"), says="must return a scalar or"),
    "loops where reverse mode cannot follow": Broken(
        text=_loss(
            "x = forward(variables, batch).sum()\n"
            "return jax.lax.while_loop(lambda x: (0 < x) & (x < 9), lambda x: 2 * x, x)"
        ),
        says="Reverse-mode differentiation does not work for lax.while_loop",
        shows="return jax.lax.while_loop(",
    ),
    "fails on the host": Broken(
        text=_loss(
            "x = forward(variables, batch).sum()\njax.debug.callback(on_host, x)\nreturn x",
            more='def on_host(x):\n    raise ValueError("the host says no")',
        ),
        says="ValueError: the host says no",
        shows='raise ValueError("the host says no")',
    ),
}  # fmt: skip


def write(folder: Path, text: str, name: str = "model.py") -> Path:
    """A model file in a folder."""
    path = folder / name
    path.write_text(text)
    return path
