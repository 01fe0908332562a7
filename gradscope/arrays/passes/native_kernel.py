"""The compiled functions of `kernel_functions` as those of this process.

numba compiles them once per machine, which takes seconds. What it compiled is kept in the user's cache as an object
file, which LLVM loads without numba: importing that takes ten times as long (0.6 s of CPU time, 2026-11), and the
process would trace a model meanwhile.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import ml_dtypes
import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.passes.accumulators import BLOCK, Accumulators
from gradscope.user_cache import cache_folder

#: The folder of the user's cache in which object files are kept, and how their names end.
_KEPT_IN: Final = "kernels"
_ENDING: Final = ".object"

_POINTER: Final = "ptr"

#: What numba passes before the arguments: where to write the result, and an error. The loops have none of either.
_OUTCOME: Final = (_POINTER, _POINTER)

#: What it passes for an array of so many axes: who owns its memory and its object, elements, bytes of each, data, and
#: the shape and strides.
_ARRAY: Final = {axes: (_POINTER, _POINTER, "i64", "i64", _POINTER, *["i64"] * 2 * axes) for axes in (1, 2)}

#: What each dtype that the kernel reads is passed as.
PASSED_AS: Final = {
    np.dtype(np.float32): np.dtype(np.float32),
    np.dtype(ml_dtypes.bfloat16): np.dtype(np.int16),
    np.dtype(np.float16): np.dtype(np.int16),
}

#: The name of the function that reduces a dtype.
_REDUCED_BY: Final = {dtype: f"reduce_{dtype.name}" for dtype in PASSED_AS}

#: The types of all arguments of each function, by its name.
_TYPES: Final = {
    **dict.fromkeys(
        _REDUCED_BY.values(), (*_OUTCOME, *_ARRAY[1], "i32", *_ARRAY[1] * 2, *_ARRAY[2], *_ARRAY[1], *_ARRAY[2])
    ),
    "count_words": (*_OUTCOME, *_ARRAY[1], *_ARRAY[2]),
}

#: The name of a function in an object file.
_NAMED: Final = "gradscope_{}".format

_OF_C: Final = {_POINTER: ctypes.c_void_p, "i32": ctypes.c_int32, "i64": ctypes.c_int64}

#: The modules whose text what is compiled depends on.
_SOURCES: Final = ("accumulators", "block_kernel", "code_kernel", "kernel_functions")

#: Effort of LLVM for what runs in a loop over gigabytes, of 0 to 3.
_MOST_EFFORT: Final = 3


def is_compiled() -> bool:
    """Returns whether an earlier process has compiled these loops; it may have been with another LLVM."""
    try:
        return any(cache_folder(_KEPT_IN).glob(f"{_loops_digest()}-*{_ENDING}"))
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return False


class NativeKernel(NamedTuple):
    """A `NativeKernel` has the functions of an object file, which other threads need not wait for.

    Attributes:
        functions: The functions, by the names of the loops.
        engine: LLVM's owner of their instructions, which are gone with it.
    """

    functions: dict[str, Any]
    engine: Any

    @classmethod
    def loaded(cls) -> Self | None:
        """Returns the kept functions, which are compiled first where there are none; None where that cannot be done."""
        try:
            from llvmlite import binding  # noqa: PLC0415 - see the module's docstring

            machine = _machine(binding)
            kept = _Kept(binding)
            compiled = kept.read()
            if compiled is None:
                compiled = _compiled(binding, machine)
                if compiled is None:
                    return None
                kept.write(compiled)
            engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
            engine.add_object_file(binding.ObjectFileRef.from_data(compiled))
            engine.finalize_object()
        # An installed one that does not know this NumPy, interpreter or processor, a cache that cannot be used, and too
        # little memory to compile.
        except (ImportError, AttributeError, OSError, RuntimeError, SystemError, TypeError, MemoryError):
            return None
        functions = {
            name: ctypes.CFUNCTYPE(ctypes.c_int32, *(_OF_C[each] for each in types))(
                engine.get_function_address(_NAMED(name))
            )
            for name, types in _TYPES.items()
        }
        return cls(functions, engine)

    def reduce_floats(self, values: Array, limit: int, reduced: Accumulators) -> None:
        """Adds the reductions of elements.

        Args:
            values: One-dimensional, contiguous, of a dtype in `PASSED_AS`.
            limit: The ordinal of the smallest normal number of the tensor's own dtype, as float32.
            reduced: What is added to.
        """
        # An array that a file holds may begin at any byte.
        passed = np.require(values, requirements="A").view(PASSED_AS[values.dtype])
        rooms = np.empty((2, BLOCK), np.float32)
        self._call(_REDUCED_BY[values.dtype], passed, limit, *reduced, rooms)

    def count_words(self, fours: Array, tallies: Array) -> None:
        """Counts words of 16 bits.

        Args:
            fours: One-dimensional, contiguous, uint64: four words each.
            tallies: Int32, `TALLIES` by `WORDS_APART`; what is added to.
        """
        self._call("count_words", np.require(fours, requirements="A"), tallies)

    def _call(self, name: str, *arguments: Array | int) -> None:
        # What is passed of an array is its address: `arguments` holds it meanwhile.
        outcome = (ctypes.byref(ctypes.c_void_p()) for _ in _OUTCOME)
        self.functions[name](*outcome, *chain.from_iterable(map(_passed, arguments)))


class _Kept:
    """A `_Kept` is the object file of this machine's processor, of this version of the loops and of LLVM."""

    def __init__(self, binding: Any) -> None:
        processor = f"{binding.get_process_triple()} {binding.get_host_cpu_name()} {binding.llvm_version_info}"
        features = binding.get_host_cpu_features().flatten()
        self._loops = _loops_digest()
        self._key = hashlib.sha256("\0".join((processor, features, self._loops)).encode()).digest()

    def _path(self) -> Path:
        return cache_folder(_KEPT_IN) / f"{self._loops}-{self._key.hex()}{_ENDING}"

    def read(self) -> bytes | None:
        """Returns the object; None where none is kept, or not the whole of what was."""
        try:
            content = self._path().read_bytes()
        except (OSError, RuntimeError):
            return None
        digest, compiled = content[: hashlib.sha256().digest_size], content[hashlib.sha256().digest_size :]
        return compiled if digest == self._digest(compiled) else None

    def write(self, compiled: bytes) -> None:
        """Keeps an object for later processes, where the user's cache can be written."""
        with suppress(OSError, RuntimeError):
            path = self._path()
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}")
            try:
                partial.write_bytes(self._digest(compiled) + compiled)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)

    def _digest(self, compiled: bytes) -> bytes:
        return hashlib.sha256(self._key + compiled).digest()


def _loops_digest() -> str:
    """Returns a digest of the text of the loops."""
    texts = (Path(__file__).with_name(f"{name}.py").read_bytes() for name in _SOURCES)
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def _machine(binding: Any) -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_triple(binding.get_process_triple()).create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(),
        opt=_MOST_EFFORT, reloc="default", codemodel="jitdefault", jit=True,
    )  # fmt: skip


def _compiled(binding: Any, machine: Any) -> bytes | None:
    """Returns the object file of the loops; None where numba passes arrays in a way that is not known here."""
    from numba.core import config  # noqa: PLC0415 - see the module's docstring
    from numba.core.errors import NumbaError  # noqa: PLC0415

    settings: Any = config
    if settings.DISABLE_JIT:
        return None
    from gradscope.arrays.passes.kernel_functions import compiled_functions  # noqa: PLC0415

    try:
        texts = compiled_functions()
    except NumbaError:
        return None
    modules = [binding.parse_assembly(texts[name]) for name in _TYPES]
    visible = binding.Linkage.external
    for module, (name, known) in zip(modules, _TYPES.items(), strict=True):
        functions = [each for each in module.functions if each.linkage is visible and not each.is_declaration]
        types = [_types_of(each) for each in functions]
        if types != [known]:
            return None
        functions[0].name = _NAMED(name)
    first, *others = modules
    for each in others:
        first.link_in(each)
    return machine.emit_object(first)


def _types_of(function: Any) -> tuple[str, ...]:
    return tuple(_POINTER if each.type.is_pointer else str(each.type) for each in function.arguments)


def _passed(argument: Array | int) -> tuple[int | None, ...]:
    """Returns an argument as numba passes it to a function that counts no references."""
    if isinstance(argument, int):
        return (argument,)
    return None, None, argument.size, argument.itemsize, argument.ctypes.data, *argument.shape, *argument.strides
