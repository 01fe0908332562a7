"""A request for a checkpoint names it, what its tensors are renamed to, and the variables that are not read from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from gradscope import naming
from gradscope.errors import DumpError, UsageError
from gradscope.naming import Selection, printable
from gradscope.naming.selecting.patterns import Pattern
from gradscope.tracing.data.files.checkpoint_files import SavedTensor
from gradscope.tracing.data.mismatches import shortened
from gradscope.tracing.data.renaming.key_map import KeyMap
from gradscope.tracing.leaves import Leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """A `CheckpointRequest` names a checkpoint and what is done to its tensors.

    Attributes:
        path: The file or folder.
        key_map: Renames its tensors.
        rearrange: Makes variables of its tensors before that, as the user's map file says; None without one. Those
            that it makes are `exact`: they are in the model's layout.
        unused: Returns the rules of that file that apply to no tensor of some names; None without one.
        keep_init: The variables that stay as `init` makes them, whatever the checkpoint has.
    """

    path: Path
    key_map: KeyMap = field(default_factory=KeyMap)
    rearrange: Callable[[Mapping[str, SavedTensor]], Mapping[str, SavedTensor]] | None = None
    unused: Callable[[Iterable[str]], Sequence[str]] | None = None
    keep_init: tuple[Pattern, ...] = ()

    @property
    def has_rules(self) -> bool:
        """Whether the user has rules for its tensors."""
        return bool(self.key_map.substitutions) or self.rearrange is not None

    def renamed(self, saved: Mapping[str, SavedTensor]) -> tuple[dict[str, SavedTensor], list[str]]:
        """Returns tensors as the user's rules make and rename them, and sentences about rules that apply to none.

        Each tensor knows its name in the file.

        Raises:
            DumpError: The key map gives one name to several tensors, or leaves all out.
            UsageError: A rule does not fit a tensor.
        """
        made = saved if self.rearrange is None else self.rearrange(saved)
        renamed, unused = self.key_map.renamed(name for name, each in made.items() if not each.exact)
        names = {name: renamed.get(name, name) for name in made}
        twice = [name for name, count in Counter(names.values()).items() if name and count > 1]
        if twice:
            raise DumpError(f"{printable(str(self.path))}: --map-keys renames several tensors to {printable(twice[0])}")
        if made and not any(names.values()):
            raise DumpError(f"{printable(str(self.path))}: --map-keys leaves all of its tensors out")
        of_map = [] if self.unused is None else self.unused(saved)
        notes = [
            *self._unused_note(of_map, "a rule of --map applies to", "rules of --map apply to", "tensor"),
            *self._unused_note(unused, "a line of --map-keys changes", "lines of --map-keys change", "name"),
        ]
        return {name: made[old].called(old) for old, name in names.items() if name}, notes

    def _unused_note(self, unused: Sequence[str], one: str, several: str, of: str) -> list[str]:
        """Returns a sentence about the rules of a file that do nothing; none where all do something."""
        which = f"{len(unused)} {several}" if len(unused) > 1 else one
        listed = ", ".join(shortened([printable(each) for each in unused]))
        return [f"{which} no {of} of {printable(self.path.name)}: {listed}"] if unused else []

    def wanted(self, paths: Sequence[str], leaves: Sequence[Leaf]) -> tuple[int, ...]:
        """Returns the positions of the variables that are read, which are those that `keep_init` does not name.

        Args:
            paths: The path of each variable of the model, its collection first.
            leaves: The variables.

        Raises:
            UsageError: A pattern names no variable, or they name all.
        """
        spellings = [
            (path, leaf.name, naming.key_of(leaf.family, leaf.name)) for path, leaf in zip(paths, leaves, strict=True)
        ]
        Selection(select=self.keep_init).require_matches(chain.from_iterable(spellings))
        kept = Selection(exclude=self.keep_init)
        wanted = tuple(at for at, each in enumerate(spellings) if not kept.excludes(*each))
        if self.keep_init and not wanted:
            raise UsageError("--keep-init names every variable, and nothing is read", hint="leave --checkpoint out")
        return wanted
