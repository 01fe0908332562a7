"""Scope paths are layer paths in which the iterations of loops are still open.

The stacks of names inside a sub-jaxpr are relative to the equation that runs it, so a path is joined on the way down.
A loop adds an iteration to the component that encloses it: a scan under the scope `blocks` whose body opens `attn`
gives `blocks[0]/attn`, `blocks[1]/attn`, ... A loop that no scope encloses marks the first scope inside it, and so does
one that a framework runs on behalf of a module (see `module_loops`).

A scope with a path from the outermost module (see `module_scopes`) is that of a module which another than its owner
calls, and takes the place of the scopes since the outermost one. Loops under those of its owner stay there, and others
mark the module itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradscope.frameworks.modules.module_scopes import path_from_root
from gradscope.naming import LayerPath


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A `Component` has a scope's name and the number of loops that run directly under it."""

    name: str
    loops: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopePath:
    """A `ScopePath` is a sequence of components, outermost first.

    Attributes:
        components: The scopes.
        pending_loops: Loops entered here that mark the next scope.
        occurrence: 1 for the first call under these scopes, in execution order.
    """

    components: tuple[Component, ...] = ()
    pending_loops: int = 0
    occurrence: int = 1

    def scope(self, name: str) -> ScopePath:
        """Returns the path one scope deeper; a name that contains `/` is several scopes."""
        if (found := path_from_root(name)) is not None:
            shared, module = found
            return self._from_root(shared, module.split("/"))
        path = self
        for part in filter(None, name.split("/")):
            component = Component(name=part, loops=path.pending_loops)
            path = ScopePath(components=(*path.components, component))
        return path

    def _from_root(self, shared: int, parts: Sequence[str]) -> ScopePath:
        """Returns the path of a module that shares so many components with the one around it, whose path it has."""
        root, *own = parts
        opened = [number for number, each in enumerate(self.components) if module_of(each.name) == root]
        if not opened:
            return self.scope("/".join(own))
        kept = opened[-1] + 1
        found = list(self.components)
        for name in own[: shared - 1]:  # scopes of the user's own may be between them
            at = next((n for n in range(kept, len(found)) if module_of(found[n].name) == module_of(name)), None)
            if at is None:
                break
            found[at] = replace(found[at], name=name)
            own, kept = own[1:], at + 1
        loops = sum(each.loops for each in found[kept:]) + self.pending_loops
        found = [*found[:kept], *(Component(name=name) for name in own)]
        return ScopePath(components=(*found[:-1], replace(found[-1], loops=found[-1].loops + loops)))

    def loop_within(self) -> ScopePath:
        """Returns the path inside a loop that runs here and whose iterations are those of the next scope."""
        return replace(self, pending_loops=self.pending_loops + 1)

    def loop(self) -> ScopePath:
        """Returns the path inside a loop that runs here and whose iterations are this scope's."""
        if self.pending_loops or not self.components:
            return self.loop_within()
        last = self.components[-1]
        return ScopePath(components=(*self.components[:-1], replace(last, loops=last.loops + 1)))

    def without_outermost(self, scopes: int) -> ScopePath:
        """Returns the path without some outermost scopes, whose iterations are those of the next one: `attn[0]`."""
        outermost, (first, *rest) = self.components[:scopes], self.components[scopes:]
        loops = sum(component.loops for component in outermost)
        return replace(self, components=(replace(first, loops=loops + first.loops), *rest))

    def occurring(self, occurrence: int) -> ScopePath:
        """Returns the path for the `occurrence`-th entry into the same scopes."""
        return replace(self, occurrence=occurrence)

    @property
    def template(self) -> str:
        """Returns the path with `[*]` for every iteration: `blocks[*]/attn#2`."""
        return str(self._marked(["*"] * sum(component.loops for component in self.components)))

    def at(self, iteration: Sequence[int]) -> LayerPath:
        """Returns the layer path at one iteration per enclosing loop, outermost first."""
        return self._marked([str(index) for index in iteration])

    def _marked(self, marks: Sequence[str]) -> LayerPath:
        remaining = iter(marks)
        components = tuple(c.name + "".join(f"[{next(remaining)}]" for _ in range(c.loops)) for c in self.components)
        return LayerPath(components=components, occurrence=self.occurrence)


def module_of(scope: str) -> str:
    """Returns the module of a scope, which is that of the module or of one of its methods: `vae` for `vae.encode`."""
    return scope.partition(".")[0]
