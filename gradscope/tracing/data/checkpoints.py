"""Checkpoints provide saved variables in place of those that a model's `init` makes.

The file may be what a framework saved of a whole training run: `variable_names` finds the variables in it, by their
paths, `params/head/kernel`, by their keys in a dump, `param/head/kernel`, or by their names in their collection,
`head/kernel`; also with dots for slashes, as PyTorch writes them. The rest of the file is left out, which a note says.
`axes` puts kernels of another library's layout into the model's. The file must have all variables, each of the shape
that `init` gives it; one message lists all mismatches. Only random keys, the collection `rngs`, may be missing, and are
then those of `init`; and all of a collection beside the parameters, such as running statistics, or counts that another
library keeps otherwise, which a note says; and what the user asks to keep, as the head of another task.

A tensor keeps the checkpoint's own dtype, as it would where a user loads it, as far as JAX has it enabled.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.errors import DumpError
from gradscope.frameworks.modules.tree_names import tree_names
from gradscope.naming import printable
from gradscope.tracing.data.absent_collections import absence_notes, absent_collections, is_random_key
from gradscope.tracing.data.axes import Axes, Stored, infer_axes, rearranged, said_of_transposed
from gradscope.tracing.data.axes_of_one import axes_notes, but_for_axes_of_one
from gradscope.tracing.data.files.checkpoint_files import SavedTensor, open_checkpoint
from gradscope.tracing.data.files.checkpoint_folders import choice_note
from gradscope.tracing.data.mismatches import dtype_notes, in_groups, is_coarser, listed, mismatches, shortened
from gradscope.tracing.data.renaming.checkpoint_request import CheckpointRequest
from gradscope.tracing.data.renaming.renamed_counts import count_notes, unsaved_counts
from gradscope.tracing.data.renaming.renaming_hints import Unmatched, axes_hint, foreign_hint, other_hint
from gradscope.tracing.data.renaming.rival_homes import place_of, rivals_hint
from gradscope.tracing.data.saved_keys import typed_keys, without_other_keys
from gradscope.tracing.data.variable_names import Matches, by_position, collection_of, find_variables, last_name
from gradscope.tracing.layers.convolution_kernels import ConvolutionKernel
from gradscope.tracing.leaves import Leaf, variable_leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A `Checkpoint` holds variables that were read from a file.

    Attributes:
        variables: Pytree of NumPy arrays, of the structure that the model expects.
        notes: Sentences about where the variables were found, and about differences from those that `init` makes.
    """

    variables: Any
    notes: tuple[str, ...]


def variables_from_file(
    request: CheckpointRequest,
    expected: Any,
    make: Callable[[], Any],
    kernels: Callable[[], Mapping[int, ConvolutionKernel]] = dict,
) -> Checkpoint:
    """Returns the variables of a checkpoint.

    Args:
        request: The checkpoint, see `gradscope.tracing.data.files.checkpoint_files`, and what is done to its tensors.
        expected: Pytree of `jax.ShapeDtypeStruct` that the model's own `init` would return.
        make: Returns `init`'s variables; called where the checkpoint lacks random keys.
        kernels: Returns those of the variables that the model convolves with, by position; called where the file has
            tensors of more than two axes in another order.

    Returns:
        The variables.

    Raises:
        DumpError: It cannot be read, or does not contain such variables; the message lists every mismatch.
        UsageError: A rule of the user's does not fit a tensor.
        MachineError: The library that reads it is not installed.
    """
    full, tree = tree_names(expected), jax.tree_util.tree_structure(expected)
    own = variable_leaves(expected)
    wanted = request.wanted(full, own)
    paths, leaves = [full[at] for at in wanted], [own[at] for at in wanted]
    read = {*paths}
    kept = {path: leaf for path, leaf in zip(full, own, strict=True) if path not in read}
    with open_checkpoint(request.path) as saved:
        tensors, unused = request.renamed(saved)
        ordered = request.path.suffix == ".eqx" and not request.has_rules
        found = by_position(wanted, tensors) if ordered else find_variables(paths, leaves, list(tensors))
        tensors |= typed_keys(found, leaves, tensors)
        found = without_other_keys(found, leaves, tensors)
        reshaped = but_for_axes_of_one(found, leaves, tensors)
        tensors |= reshaped
        of_kept = None
        if kept:
            whole = by_position(range(len(full)), tensors) if ordered else find_variables(full, own, list(tensors))
            names = (name for path, name in zip(full, whole.names, strict=True) if path in kept and name)
            of_kept = frozenset(names) - {*found.names}
        variables = dict(zip(paths, leaves, strict=True))
        file = _File(path=request.path, tensors=tensors, variables=variables, found=found, kept=of_kept, unused=unused,
                     kernels=lambda: {full[at]: kernel for at, kernel in kernels().items()})  # fmt: skip
        axes = file.axes()
        made = jax.tree_util.tree_leaves(make()) if kept or None in found.names else []
        arrays = [
            made[at] if name is None else _as_needed(tensors[name].read(), leaf, axes[path], file.flips(path, axes))
            for at, path, name, leaf in zip(wanted, paths, found.names, leaves, strict=True)
        ]
    notes = [*choice_note(request.path), *unused, *file.notes(axes), *axes_notes(reshaped)]
    notes += [*dtype_notes(leaves, arrays), *count_notes(paths, found, tensors, arrays)]
    if kept:
        notes.append(f"as init makes them (--keep-init): {', '.join(shortened(in_groups(kept, paths)))}")
    values = {**dict(enumerate(made)), **dict(zip(wanted, arrays, strict=True))}
    variables = jax.tree_util.tree_unflatten(tree, [values[at] for at in range(len(full))])
    return Checkpoint(variables=variables, notes=tuple(notes))


@dataclass(frozen=True, kw_only=True)
class _File:
    """A `_File` is an open checkpoint in which a model's variables were looked for.

    Attributes:
        path: Its path.
        tensors: Its tensors, renamed.
        variables: The model's variables by path.
        found: Where they are.
        kept: The names of the tensors that variables have which are not read; None where all are.
        unused: A sentence about rules of the user's that apply to no tensor, or nothing.
        kernels: Returns the variables that the model convolves with, by path.
    """

    path: Path
    tensors: Mapping[str, SavedTensor]
    variables: Mapping[str, Leaf]
    found: Matches
    kept: frozenset[str] | None
    unused: Sequence[str]
    kernels: Callable[[], Mapping[str, ConvolutionKernel]]

    def axes(self) -> dict[str, Axes]:
        """Returns the order of axes of each variable that the file has.

        Raises:
            DumpError: A variable is missing, in several places, has another shape, or axes that nothing tells apart.
        """
        if self.found.rivals and not self._holds_any():
            self._require_fitting({})
        for collection, rivals in self.found.rivals.items():
            homes = [self.found.homes[collection], *rivals]
            which = " or ".join(map(place_of, homes))
            find = partial(find_variables, list(self.variables), list(self.variables.values()))
            raise self._refused(f"{collection or 'its variables'} may be {which}",
                                rivals_hint(homes, list(self.tensors), find, ruled=self._is_ruled))  # fmt: skip
        known = {path: self._stored[path].as_it_is for path in self._exact}
        axes, undecided = infer_axes(each for path, each in self._stored.items() if path not in self._exact)
        self._require_fitting({**known, **axes, **{path: min(orders) for path, orders in undecided.items()}})
        if undecided:
            stored = [self._stored[path] for path in undecided]
            which = ", ".join(shortened([f"{printable(each.name)} {list(each.shape)}" for each in stored]))
            several = "fit in more than one order, and no other tensor tells which"
            backward = "are those of a transposed convolution, whose order and direction nothing tells"
            problem = backward if all(each.is_transposed for each in stored) else several
            raise self._refused(f"the axes of {which} {problem}", axes_hint(stored, undecided))
        return {**known, **axes}

    def flips(self, path: str, axes: Mapping[str, Axes]) -> tuple[int, ...]:
        """Returns the axes of a variable that are reversed once they are in the model's order."""
        return () if path in self._exact else self._stored[path].flips(axes[path])

    def notes(self, axes: Mapping[str, Axes]) -> Iterator[str]:
        """Yields sentences about where the variables are, what was left out, and which axes have another order."""
        inside: defaultdict[str, list[str]] = defaultdict(list)
        for collection, home in self.found.homes.items():
            inside["/".join(home.prefix)].append(collection or "the variables")
        clauses = [f"{' and '.join(names)} found under {printable(where)}" for where, names in inside.items() if where]
        names = frozenset(self._names.values())
        read = [self.tensors[name].origin or name for name in names]
        extra = {each.origin or name: each for name, each in self.tensors.items() if name not in names}
        if extra:
            count = f"{len(extra):,} other tensor{'s' * (len(extra) > 1)}"
            clauses.append(f"{count} left out: {', '.join(shortened(in_groups(extra, read)))}")
        if clauses:
            yield f"{printable(self.path.name)}: {'; '.join(clauses)}"
        yield from absence_notes(self._absent, self.path, self._left)
        for order, paths in rearranged(axes).items():
            yield f"axes put into the order {list(order)}: {listed(self._stored[path].name for path in paths)}"
        inferred = [(each, axes[path]) for path, each in self._stored.items() if path not in self._exact]
        for said, kernels in said_of_transposed(inferred).items():
            yield f"{said}: {listed(kernels)}"

    def _require_fitting(self, axes: Mapping[str, Axes]) -> None:
        left_out = unsaved_counts(self.variables, self.variables.keys() - self._names.keys(), self.tensors)
        needed = {path: leaf for path, leaf in self.variables.items()
                  if path in self._names or not (is_random_key(leaf) or path in left_out)}  # fmt: skip
        fitting = {
            path: self.tensors[name].in_order(axes[path]) if path in axes else self.tensors[name]
            for path, name in self._names.items()
        }
        extra = {name: self.tensors[name] for name in self._left}
        absent = self._absent
        if any(mismatches({path: each for path, each in needed.items() if self._within(path) not in absent}, fitting)):
            lacking = {path: leaf for path, leaf in needed.items() if path not in fitting}
            problems = list(mismatches(needed, {**extra, **fitting}))
            fits = [path for path, each in fitting.items() if not any(mismatches({path: needed[path]}, {path: each}))]
            unmatched = Unmatched(
                lacking=lacking,
                extra=extra,
                found=self._names,
                prefix=self._prefix(),
                ruled=self._is_ruled,
                keeps=self.kept is not None,
                made=[name for name, each in extra.items() if each.exact],
                quantised=[path for path, each in fitting.items() if is_coarser(each, needed[path])],
            )
            if fits or any(tuple(each.shape) == tuple(needed[path].shape) for path, each in fitting.items()):
                hint = other_hint(self.path, self.tensors, unmatched, needed, fits)
                raise self._refused("; ".join(problems), hint)
            raise self._foreign(len(needed), problems, foreign_hint(self.path, self.tensors, unmatched))

    @cached_property
    def _absent(self) -> Mapping[str, int]:
        """How many variables the collections have that the file has nothing of."""
        return absent_collections(self.variables, self._names, {name: self.tensors[name] for name in self._left})

    def _within(self, path: str) -> str:
        """Returns the collection of a variable."""
        return collection_of(path, self.variables[path])

    def _prefix(self) -> str:
        """Returns how the names of all variables begin that were found; "" where that is in several ways."""
        lengths = {len(home.prefix) for home in self.found.homes.values()}
        found = {re.match(r"(?:[^/.]*[/.])" * length, name) for length in lengths for name in self._names.values()}
        prefixes = {match and match[0] for match in found}
        return (prefixes.pop() or "") if len(prefixes) == 1 else ""

    def _holds_any(self) -> bool:
        """Returns whether any tensor of the file has the last name and the sizes of a variable, in whatever order."""
        held = {(last_name(name), tuple(sorted(each.shape))) for name, each in self.tensors.items()}
        return any((last_name(path), tuple(sorted(each.shape))) in held for path, each in self.variables.items())

    def _foreign(self, count: int, problems: Sequence[str], hint: str) -> DumpError:
        """Returns the error of a file without any variable of the model."""
        which = "of this model" if self.kept is None else "that are read"
        found = f"of the {count:,} variables {which} it has none"
        text = f"{printable(str(self.path))} is of another model, or has other names: {found}"
        return DumpError("\n  ".join([text, *problems, *self.unused]), hint=hint)

    def _refused(self, problem: str, hint: str | None) -> DumpError:
        text = f"{printable(str(self.path))} is not a checkpoint of this model: {problem}"
        return DumpError("\n  ".join([text, *self.unused]), hint=hint)

    @property
    def _is_ruled(self) -> bool:
        """Whether the user's rules have renamed a tensor."""
        return any(each.origin != name for name, each in self.tensors.items())

    @cached_property
    def _names(self) -> dict[str, str]:
        """The file's names of the variables that it has, by path."""
        return {path: name for path, name in zip(self.variables, self.found.names, strict=True) if name is not None}

    @cached_property
    def _exact(self) -> frozenset[str]:
        """The paths of the variables that the user's rules put into the model's layout."""
        return frozenset(path for path, name in self._names.items() if self.tensors[name].exact)

    @cached_property
    def _left(self) -> list[str]:
        """The names of the tensors that no variable of the model has, whether it is read or not."""
        taken = {*self._names.values(), *(self.kept or ())}
        return [name for name in self.tensors if name not in taken]

    @cached_property
    def _stored(self) -> dict[str, Stored]:
        stored = {
            path: Stored(
                variable=path,
                name=self.tensors[name].origin or name,
                shape=tuple(self.tensors[name].shape),
                needed=tuple(self.variables[path].shape),
            )
            for path, name in self._names.items()
        }
        if any(len(each.shape) > 2 and (each.renamed or "." in each.name) for each in stored.values()):
            kernels = self.kernels()
            return {path: replace(each, kernel=kernels.get(path)) for path, each in stored.items()}
        return stored


def _as_needed(array: np.ndarray, leaf: Leaf, axes: Axes, flips: Axes) -> Any:
    """Returns an array with its axes in the model's order; typed random keys, of which a file has the data, as such."""
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.flip(array.transpose(axes), flips)
    return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(jnp.zeros((), leaf.dtype)))
