"""`Seen` is the result of an observing step: a pytree that maps names to observations.

Its leaves are device arrays, so it can be returned from `jit`, `vmap`, `scan` and `shard_map` like any output. Its
names are fixed when the step is traced. On the host it is a run like any other, and can be saved as a dump.

`vmap` adds a leading axis to every observation, a scan over steps another. Looking up a name returns all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.core import Tracer

from gradscope import naming
from gradscope.capturing.execution.observation import gathered, with_global_facts
from gradscope.capturing.execution.run import Run, observed_iterations
from gradscope.capturing.records.measure import CoreReading, Reading
from gradscope.capturing.records.session import Session
from gradscope.errors import UsageError
from gradscope.instrument.observing_program import Observed, Reached
from gradscope.instrument.plan import Plan
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.statistics.core_columns import CoreStatistics, rows_of, scalars_of
from gradscope.instrument.taps import full_tensor
from gradscope.naming.selecting.nearest_names import missing_key
from gradscope.naming.small_chart import SmallChart
from gradscope.naming.summary import Summary
from gradscope.naming.wording import counted
from gradscope.tracing.tracer import Trace

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultedTypeVar

    #: What is kept of a value: its core statistics, or the tensor.
    Kept = DefaultedTypeVar("Kept", default=Any)
else:
    Kept = TypeVar("Kept")  # Python 3.13 is the first in which one has a default


@dataclass(frozen=True, eq=False)
class Watching:
    """A `Watching` states what a step observes; two are equal when program and selection are.

    Attributes:
        trace: The traced function.
        plan: The sites observed.
        spec: The selection.
        reached: The sites, terms and arguments that the value is connected to.
    """

    trace: Trace
    plan: Plan
    spec: CaptureSpec
    reached: Reached

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Watching) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        return self.trace.fingerprint, self.spec, self.plan.observe

    @property
    def statistics(self) -> bool:
        """Whether statistics were kept instead of tensors."""
        return self.plan.observe is not full_tensor

    @cached_property
    def indexes(self) -> Mapping[str, ObservationIndex]:
        """Where the observation of each key is stored; the iteration of a `while` loop counts as 0."""
        return self.indexes_of({})

    def indexes_of(self, counts: Mapping[int, Any]) -> Mapping[str, ObservationIndex]:
        """Returns where the observation of each key is stored, by the number of iterations that `while` loops ran."""
        return {index.key: index for index in (*self._argument_indexes(), *self._site_indexes(counts))}

    def _argument_indexes(self) -> Iterator[ObservationIndex]:
        for number, leaf in enumerate(self.trace.arguments):
            if leaf.family == naming.PARAM and leaf.differentiated:
                for family, holder in ((naming.PARAM, "arguments"), (naming.PARAM_GRAD, "gradients")):
                    yield from self._if_selected(family, leaf.name, ObservationIndex("", holder, number, ()))

    def _if_selected(self, family: str, name: str, index: ObservationIndex) -> Iterator[ObservationIndex]:
        if self.spec.selects(family, name):
            yield index._replace(key=naming.key_of(family, name))

    def _site_indexes(self, counts: Mapping[int, Any]) -> Iterator[ObservationIndex]:
        for number, site in enumerate(self.plan.sites):
            for at, iteration, last, _ in observed_iterations(site.loops, counts.get(number)):
                for name in site.names:
                    for family, holder in ((naming.ACTIVATION, "values"), (naming.ACTIVATION_GRAD, "cotangents")):
                        shown = self.spec.selects_layer(family, name, iteration)
                        if shown and (holder == "values" or number in self.plan.gradients):
                            yield ObservationIndex(naming.key_of(family, str(name.at(last))), holder, number, at)


class ObservationIndex(NamedTuple):
    """An `ObservationIndex` locates the observation of a key: the holder in `Seen`, the number and the iteration."""

    key: str
    holder: str
    number: int
    at: tuple[int, ...]


@jax.tree_util.register_pytree_node_class
class Seen(Mapping[str, Kept]):
    """`Seen` maps keys, `activation_grad/encoder/block[3]/mlp`, to `CoreStatistics`, or to tensors where requested.

    Args:
        watching: What was observed.
        observed: The observations that the step returned, including those of arguments.
        arguments: Observations of the differentiated arguments, by number.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import gradscope as gs
        >>> step = jax.jit(gs.value_and_grad(lambda w: (w**2).sum(), select="param*"))
        >>> _, seen = step(jnp.array([3.0, -4.0]))
        >>> {key: float(seen[key].l2) for key in seen if key.startswith("param")}
        {'param/value': 5.0, 'param_grad/value': 10.0}
    """

    def __init__(self, watching: Watching, observed: Observed, arguments: Mapping[int, Any]) -> None:
        self.watching = watching
        self.observed = observed
        self.arguments = arguments

    def __getitem__(self, key: str) -> Kept:
        index = self._indexes.get(key) or self.watching.indexes.get(key)
        if index is None:
            raise missing_key("nothing was observed as", key, self._indexes)
        holders = {
            "arguments": self.arguments,
            "gradients": self.observed.gradients,
            "values": self.observed.captured.values,
            "cotangents": self.observed.cotangents,
        }
        observation = holders[index.holder][index.number][(*self._all_steps, *index.at)]
        return cast("Kept", CoreStatistics(observation) if self.watching.statistics else observation)

    def __iter__(self) -> Iterator[str]:
        return iter(self._indexes)

    def __len__(self) -> int:
        return len(self.watching.indexes)

    def scalars(self, columns: Sequence[str] = ("l2", "rms")) -> dict[str, float]:
        """Returns the loss and the statistics as a flat dictionary of floats, for wandb and other trackers.

        It waits for the step, once for all of it.

        Args:
            columns: The statistics: `l2`, `rms`, `mean`, `std`, `amax`, `zeros`, `nan`, `inf`.

        Returns:
            `loss`, and the statistics by key and column, `param_grad/head/kernel/l2`; those that a tensor without a
            finite element lacks are left out.

        Raises:
            UsageError: There is no such statistic, tensors were observed, or several steps.
        """
        if self._all_steps or not self.watching.statistics:
            what = "of several steps or examples" if self._all_steps else "tensors"
            raise UsageError(f"these are observations {what}, and a tracker takes the statistics of one step")
        return {"loss": float(self.observed.loss), **scalars_of(cast("Mapping[str, CoreStatistics]", self), columns)}

    def summary(self) -> Summary:
        """Returns what was observed; numbers only where the step has run, which this then waits for."""
        kind = "statistics" if self.watching.statistics else "tensors"
        first: list[tuple[str, Any]] = [(key, self[key]) for key in islice(self, Summary.most())]
        if self.watching.statistics:
            headings, rows = rows_of(first)
        else:
            headings, rows = ("tensor", "type"), tuple((key, jax.typeof(value).str_short()) for key, value in first)
        return Summary(
            line=f"{kind}: {counted(len(self), 'key')}", headings=headings, rows=rows, total=len(self),
            chart=SmallChart(title="rms along depth", lines=self._along_depth()) if "rms" in headings else None,
        )  # fmt: skip

    def _along_depth(self) -> dict[str, list[float | None]]:
        """Returns the rms of the first activations and of their gradients, in execution order."""
        families = (naming.ACTIVATION, naming.ACTIVATION_GRAD)
        split = [naming.split_key(key) for key in self]
        names = list(dict.fromkeys(name for family, name in split if family == naming.ACTIVATION))[:_MOST_DRAWN]
        keys = {family: [naming.key_of(family, name) for name in names] for family in families}
        known = self._indexes
        found: list[tuple[str, Any]] = [(key, self[key]) for each in keys.values() for key in each if key in known]
        headings, rows = rows_of(found)
        rms = {row[0]: row[headings.index("rms")] for row in rows}
        return {family: [cast("float | None", rms.get(key)) for key in each] for family, each in keys.items()}

    def __repr__(self) -> str:
        kind = "statistics of" if self.watching.statistics else "with"
        return f"<gradscope.Seen {kind} {counted(len(self), 'tensor')}>"

    def __str__(self) -> str:
        return self.summary().text()

    def _repr_html_(self) -> str:
        return self.summary().html()

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    # A mapping is equal by its values, and arrays have no truth value.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @cached_property
    def _indexes(self) -> Mapping[str, ObservationIndex]:
        """Where the observation of each key is stored; only what has run knows how often a `while` loop did."""
        counts = self.observed.captured.iterations
        known = counts and not self._all_steps and not any(isinstance(each, Tracer) for each in counts.values())
        return self.watching.indexes_of(counts) if known else self.watching.indexes

    @property
    def _all_steps(self) -> tuple[slice, ...]:
        """The index of the leading axes that `vmap` and scans over steps added: those that even the loss has."""
        return (slice(None),) * jnp.ndim(self.observed.loss)

    def session(self, reading: Reading) -> Session:
        """Returns the session that turns these observations, on the host, into the records of a dump.

        Where several processes share them, all of the processes have to call this.

        Args:
            reading: How tensors are read, where tensors were observed.

        Raises:
            UsageError: They are those of several steps or examples.
        """
        if axes := self._all_steps:
            last, count = ", ".join(["-1"] * len(axes)), jnp.size(self.observed.loss)
            as_run = "; probe.write(0, seen) records all as steps of a run" if len(axes) == 1 else ""
            raise UsageError(
                f"these are the observations of {count} steps or examples, and a dump holds one",
                hint=f"gs.save(path, jax.tree.map(lambda leaf: leaf[{last}], seen)) saves the last one{as_run}",
            )
        trace = replace(self.watching.trace, auxiliary=())
        observed, kept = self._gathered_where_small()
        arguments = [kept.get(number) for number in range(len(trace.arguments))]
        spec = replace(self.watching.spec, families=self.watching.spec.families.intersection(_SEEN))
        run = Run(
            trace=trace,
            plan=self.watching.plan,
            spec=spec,
            arguments=arguments,
            observed=observed,
            reached=self.watching.reached,
        )
        return Session(run, CoreReading() if self.watching.statistics else reading)

    def _gathered_where_small(self) -> tuple[Observed, Mapping[int, Any]]:
        """Returns the observations, with all but the tensors complete in every process."""
        if self.watching.statistics:
            return gathered((self.observed, self.arguments))
        return with_global_facts(self.observed), self.arguments

    def tree_flatten(self) -> tuple[tuple[Any, Any], Watching]:
        """Returns the observations, and the static description of them."""
        return (self.observed, self.arguments), self.watching

    @classmethod
    def tree_unflatten(cls, watching: Watching, children: tuple[Any, Any]) -> Seen[Any]:
        """Restores the observations from the output of `tree_flatten`."""
        return cls(watching, *children)


#: The most layers in the chart of a notebook; each is read from the device.
_MOST_DRAWN: Final = 200
#: The families that a step observes. The caller has all other arguments and auxiliary outputs.
_SEEN: Final = (naming.ACTIVATION, naming.ACTIVATION_GRAD, naming.PARAM, naming.PARAM_GRAD)


def require_observable(families: Collection[str]) -> None:
    """Refuses families that a step does not observe.

    Raises:
        UsageError: There is one among them.
    """
    for family in families:
        if family not in _SEEN:
            raise UsageError(
                f"value_and_grad does not observe the family {family}", hint=f"it observes {', '.join(_SEEN)}"
            )
