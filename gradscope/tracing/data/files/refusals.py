"""`refusal_of` says of files that are not read why that is so, and how what is in them is written otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gradscope.errors import DumpError
from gradscope.naming import printable

_KERAS: Final = (".keras", ".h5")
_KERAS_WEIGHTS: Final = ".weights.h5"


#: How the name of an index ends that names PyTorch's files.
_TORCH_INDEX: Final = ".bin.index.json"


def refusal_of(path: Path, kind: str) -> DumpError | None:
    """Returns the error of a file that is not read; None for another.

    Args:
        path: The file.
        kind: What it is, as `kind_of` tells.
    """
    if path.suffix in _KERAS:
        return _keras_error(path)
    if path.name.endswith(_TORCH_INDEX):
        return _torch_index_error(path)
    return _pickle_error(path, kind) if kind in ("torch", "pickle") else None


def _pickle_error(path: Path, kind: str) -> DumpError:
    """Returns the error of a file that is a pickle, with the line of Python that writes its tensors."""
    if kind == "torch":
        target = str(path.with_suffix(".safetensors"))
        return DumpError(
            f"{printable(str(path))}: PyTorch's file is a pickle, which is never read: it could run any code",
            hint="write its tensors as safetensors, in Python: import jax, torch; "
            "from safetensors.torch import save_file; "
            f"tree = torch.load({str(path)!r}, map_location='cpu', weights_only=True); "
            "save_file({jax.tree_util.keystr(path, simple=True, separator='.'): each.contiguous().clone() "
            "for path, each in jax.tree_util.tree_leaves_with_path(tree) if isinstance(each, torch.Tensor)}, "
            f"{target!r})\n"
            "where torch.load refuses it, it may have a whole module, whose code weights_only=False would run: "
            "tree = torch.load(..., weights_only=False).state_dict(); of TorchScript, torch.jit.load(...).state_dict()",
        )
    return DumpError(
        f"{printable(str(path))}: it is a pickle, which is never read: it could run any code",
        hint="write its arrays as .npz, in Python: import jax, numpy, pathlib, pickle; "
        f"tree = pickle.loads(pathlib.Path({str(path)!r}).read_bytes()); "
        f"numpy.savez({str(path.with_suffix('.npz'))!r}, **"
        "{jax.tree_util.keystr(path, simple=True, separator='/'): leaf "
        "for path, leaf in jax.tree_util.tree_leaves_with_path(tree)})",
    )


def _torch_index_error(path: Path) -> DumpError:
    """Returns the error of an index of PyTorch's files, with the Python that writes each of them as safetensors."""
    files = str(path.parent / f"{path.name.removesuffix(_TORCH_INDEX)}*.bin")
    return DumpError(
        f"{printable(str(path))}: the files that it names are PyTorch's pickles, which are never read: they could run "
        "any code",
        hint="write their tensors as safetensors, in Python: import glob, torch; "
        "from safetensors.torch import save_file; "
        f"[save_file({{name: each.contiguous().clone() for name, each in torch.load(file, map_location='cpu', "
        f"weights_only=True).items()}}, file[:-4] + '.safetensors') for file in glob.glob({files!r})]; then name "
        f"the folder: {printable(str(path.parent))}",
    )


def _keras_error(path: Path) -> DumpError:
    """Returns the error of a file of Keras that is not the target's own, with the Python that writes another."""
    if path.name.endswith(_KERAS_WEIGHTS):
        read = f"model = ...; model.load_weights({str(path)!r})"
    else:
        read = f"model = keras.saving.load_model({str(path)!r})"
    stem = str(path).removesuffix(_KERAS_WEIGHTS).removesuffix(path.suffix)
    own = "name that model as the target"
    if path.suffix == ".h5" and not path.name.endswith(_KERAS_WEIGHTS):  # the format of Keras 2
        weights = f"{stem}{_KERAS_WEIGHTS}"
        own += f", with its weights as {_KERAS_WEIGHTS}, in Python: {read}; model.save_weights({weights!r})"
    arrays = f"numpy.savez({f'{stem}.npz'!r}, **{{each.path: numpy.asarray(each) for each in model.weights}})"
    return DumpError(
        f"{printable(str(path))}: only the Keras model that wrote it can read it",
        hint=f"{own}; for a model of another library, write its weights as .npz, in Python: import keras, numpy; "
        f"{read}; {arrays}; --map-keys renames them",
    )
