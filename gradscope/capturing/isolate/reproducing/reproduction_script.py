"""The script of a reproduction is plain Python with an `.npz` next to it, and does not need gradscope."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import dtype_name, encode
from gradscope.capturing.isolate.reproducing.expectation import Expectation
from gradscope.capturing.isolate.reproducing.reproduction import Reproduction
from gradscope.dump.storage.storage_errors import machine_errors
from gradscope.dump.storage.writing.atomic_folder import write_folder
from gradscope.dump.storage.writing.companions import write_together
from gradscope.dump.storage.writing.target_path import checked_file

#: Prefixes of the names of the file's arrays.
_INPUT, _COTANGENT, _FORWARD, _VJP = "input", "cotangent", "forward", "vjp"

_HEAD: Final = '''"""{title}

    python {file}.py        prints the errors; exits 0 where they are within tolerance, 1 where not

Needs jax and numpy. `forward` is the layer as JAX traced it, `vjp` returns the gradients of its inputs, with custom
differentiation rules applied. An expected array is {whose}, the rest of its sum once the terms of other layers are
subtracted, or from a run of the layer when this was written.

{origins}
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

jax.config.update("jax_enable_x64", {x64})

#: The dtypes of arrays that the file stores in another.
DTYPES = {dtypes}
'''

_MIDDLE: Final = '''

def load(path):
    """Returns the arrays of a file, in their own dtypes."""
    with np.load(path) as file:
        return {name: read(file[name], DTYPES.get(name)) for name in file.files}


def read(stored, dtype):
    if dtype is None:
        return stored
    if dtype.startswith("key<"):
        return jax.random.wrap_key_data(stored, impl=dtype[4:-1])
    own = jnp.dtype(dtype)
    return stored.view(own) if stored.dtype.kind == "V" else stored.astype(own)


ARRAYS = load(Path(__file__).with_suffix(".npz"))
'''

_END: Final = '''

INPUTS = {inputs}
COTANGENTS = {cotangents}
#: For each expected array: its name, where it comes from, the tolerance on rel_l2, and the l2 norm that rounding alone
#: can reach where the array is a sum whose terms cancel.
FORWARD = {outputs}
VJP = {gradients}


def data(array):
    """Returns the numbers of a random key, and any other array as it is."""
    return jax.random.key_data(array) if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else array


def distance(expected, found):
    """Returns l2(found - expected) and l2(expected); the first is infinite where other elements are finite."""
    one, other = (np.asarray(data(each)).astype(np.complex128).ravel() for each in (expected, found))
    finite = np.isfinite(one)
    if one.shape != other.shape or not np.array_equal(finite, np.isfinite(other)):
        return np.inf, 1.0
    return np.linalg.norm((other - one)[finite]), np.linalg.norm(one[finite])


def check(direction, expectations, found):
    """Print the errors of one direction, and return whether all are within tolerance."""
    right = True
    for (name, origin, tolerance, floor), array in zip(expectations, found, strict=True):
        away, norm = distance(ARRAYS[f"{{direction}}/{{name}}"], array)
        error = 0.0 if away == 0 else np.inf if norm == 0 else away / norm
        zero = error > tolerance and away <= floor
        right &= bool(error <= tolerance or zero)
        verdict = "ok" if error <= tolerance or zero else "WRONG"
        result = f"rel_l2 {{error:8.2e}}   tolerance {{tolerance:.0e}}   {{verdict:<5}}   expected: {{origin}}"
        what = name if direction == "forward" else f"gradient of {{name}}"
        print(f"{{direction:<8}} {{what:<32}} {{result}}" + (", zero but for rounding" if zero else ""))
    return right


def main():
    inputs = [ARRAYS[f"input/{{name}}"] for name in INPUTS]
    cotangents = [ARRAYS[f"cotangent/{{name}}"] for name in COTANGENTS]
    right = check("forward", FORWARD, jax.jit(forward)(*inputs))
    right &= check("vjp", VJP, jax.jit(vjp)(*inputs, *cotangents))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
'''


def write_reproduction(
    folder: Path, reproduction: Reproduction, *, file: str, dumps: Sequence[Path], force: bool
) -> None:
    """Writes the script and its arrays into a folder crash-safely: a new folder in one step, or else both together.

    Args:
        folder: The folder.
        reproduction: The layer.
        file: Name of both files without their suffix.
        dumps: The dump with the values, and others that are read; none is replaced.
        force: Whether existing files may be replaced.

    Raises:
        UsageError: A file exists (without `force`), is a link, a dump that is read, or not a regular file.
        MachineError: The folder cannot be created, or the disk is full or fails.
    """
    stored = BytesIO()
    np.savez(stored, allow_pickle=False, **arrays(reproduction))
    text = script(reproduction, file=file, dump=dumps[0].name)
    files = {f"{file}.npz": stored.getvalue(), f"{file}.py": text.encode()}
    if not folder.exists() and not folder.is_symlink():
        with machine_errors("write to", folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
        write_folder(folder, files)
        return
    with machine_errors("write to", folder):
        folder.mkdir(exist_ok=True)
    checked = {checked_file(folder / name, force=force, inputs=dumps): data for name, data in files.items()}
    write_together(checked, replace=force)


def script(reproduction: Reproduction, *, file: str, dump: str) -> str:
    """Returns the text of the script.

    Args:
        reproduction: The layer.
        file: Name of the script without its suffix; the arrays are next to it under the same name.
        dump: Name of the dump.
    """
    source = f" ({reproduction.source})" if reproduction.source else ""
    other = {name: _dtype(array) for name, array in _named(reproduction) if _stored(array).dtype != array.dtype}
    origins = "\n".join(f"    {name:<24} {origin}" for name, origin in reproduction.origins.items())
    head = _HEAD.format(
        title=_in_docstring(f"The layer {reproduction.name}{source} by itself, with its values from {dump}."),
        file=file,
        whose=reproduction.whose,
        origins=_in_docstring(origins) or "    it has no input",
        x64=bool(jax.config.read("jax_enable_x64")),
        dtypes=other,
    )
    end = _END.format(
        inputs=list(reproduction.inputs),
        cotangents=list(reproduction.cotangents),
        outputs=_expected(reproduction.outputs, reproduction.whose),
        gradients=_expected(reproduction.gradients, reproduction.whose),
    )
    return "\n".join((head + _MIDDLE, "", *reproduction.code, end))


def arrays(reproduction: Reproduction) -> dict[str, Array]:
    """Returns the arrays of the script by name, in dtypes that any NumPy stores."""
    return {name: _stored(array) for name, array in _named(reproduction)}


def _in_docstring(text: str) -> str:
    """Returns text that neither ends a docstring nor escapes anything in it."""
    return text.replace("\\", "\\\\").replace('"', "'")


def _stored(array: Any) -> Array:
    """Returns an array in a dtype that any NumPy stores; for random keys, their data."""
    return np.asarray(jax.random.key_data(array)) if _is_key(array) else encode(array)


def _dtype(array: Any) -> str:
    return f"key<{jax.random.key_impl(array)}>" if _is_key(array) else dtype_name(array.dtype)


def _is_key(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jax.dtypes.prng_key))


def _named(reproduction: Reproduction) -> Iterator[tuple[str, Any]]:
    for kind, found in ((_INPUT, reproduction.inputs), (_COTANGENT, reproduction.cotangents)):
        yield from ((f"{kind}/{name}", array) for name, array in found.items())
    yield from reproduction.constants.items()
    for kind, expected in ((_FORWARD, reproduction.outputs), (_VJP, reproduction.gradients)):
        yield from ((f"{kind}/{each.name}", each.array) for each in expected)


def _expected(expectations: tuple[Expectation, ...], whose: str) -> list[tuple[str, str, float, float]]:
    origins: Mapping[str, str] = {
        "dump": whose,
        "rest": f"{whose} sum, less the other layers' terms",
        "run": "a run of the layer",
    }
    return [(each.name, origins[each.origin], each.tolerance, each.floor) for each in expectations]
