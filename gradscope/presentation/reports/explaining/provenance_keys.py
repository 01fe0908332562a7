"""`PROVENANCE` has the facts of a run that may explain a difference between two dumps, and what each is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

#: By the name that `provenance` of a dump and `field` of a difference have for it.
PROVENANCE: Final[Mapping[str, str]] = MappingProxyType({
    "model": "The name of the model",
    "model_file": "The name of the file that defines the model",
    "model_sha256": "The SHA-256 of that file",
    "git_commit": "The commit that the file's repository is at",
    "git_clean": "Whether the file is as that commit has it",
    "target": "The model as the command line names it, without its folder",
    "seed": "The seed of the parameters and of the batch",
    "batch_size": "The number of examples that were requested of `batch`",
    "batch_sha256": "The SHA-256 over the shapes, dtypes and bytes of the batch: two dumps that have another one were "
    "not given the same examples in the same order, layout and dtype",
    "trace_fingerprint": "The SHA-256 of the program that JAX traces: of its operations, their scopes, and how values "
    "go from one to the next. What an operation is told beside its operands, as an axis, counts by the shapes that it "
    "leads to",
    "naming": "What layers are named by: `scopes`, or `parameters and lines` where the program has no scopes",
    "python": "The version of Python",
    "versions": "The versions of gradscope, JAX, NumPy and the frameworks that are installed",
    "backend": "The platform that JAX ran the program on, as `cpu` or `gpu`",
    "device": "The kind of its devices, as JAX spells it",
    "device_count": "The number of its devices",
    "x64": "Whether 64-bit types were enabled",
    "matmul_precision": "The setting `jax_default_matmul_precision` of JAX; by `default`, an accelerator may multiply "
    "float32 in fewer bits",
    "xla_flags": "The environment variable `XLA_FLAGS`",
    "argv": "The command line",
})  # fmt: skip
