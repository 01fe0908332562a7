"""Several processes take the steps of one run together: one of them writes, and an `Agreement` makes them act alike.

Every process runs the same loop on the same program, which spans the devices of all. So the numbers of a step, and all
that follows from them, are the same in each. What only one process knows, such as a signal or the time, may decide
nothing before the others know it, too: a process that ran another program than the rest would wait for them forever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gradscope.dump.manifest.provenance import content_hash
from gradscope.errors import DumpError, GradscopeError, MachineError, ModelError, UsageError
from gradscope.instrument.taps import full_tensor
from gradscope.naming import printable
from gradscope.tracing.user_frames import user_code

_Result = TypeVar("_Result")
_AXIS: Final = "processes"
_KINDS: Final = {kind.exit_code: kind for kind in (UsageError, DumpError, ModelError, MachineError)}


class Processes:
    """`Processes` are those of this run; of a program that was not started by `jax.distributed`, one.

    Attributes:
        count: How many there are.
        writes: Whether this one writes the run, and speaks for all.
    """

    def __init__(self) -> None:
        self.count = jax.process_count()
        self.writes = jax.process_index() == 0
        self._spread: Any = None
        self._largest: Any = None
        if self.count > 1:
            firsts = {device.process_index: device for device in reversed(jax.devices())}
            mesh = Mesh(np.array([firsts[each] for each in sorted(firsts)]), (_AXIS,))
            self._spread = NamedSharding(mesh, PartitionSpec(_AXIS))
            everywhere = NamedSharding(mesh, PartitionSpec())
            self._largest = jax.jit(lambda numbers: numbers.max(axis=0), out_shardings=everywhere)

    def largest(self, numbers: Sequence[int]) -> Any:
        """Returns the largest of each of some numbers over the processes, an array that may be on its way.

        Every process calls it at the same place of its loop.
        """
        mine = np.array([numbers], np.int32)
        if self.count == 1:
            return mine[0]
        with user_code("handing over to the other processes"):
            return self._largest(
                jax.make_array_from_callback((self.count, len(numbers)), self._spread, lambda _index: mine)
            )

    def at_first(self, action: Callable[[], _Result]) -> _Result | None:
        """Runs an action in the process that writes, for which the others wait; returns its result there.

        Raises:
            GradscopeError: It failed, in each process.
        """
        failure: GradscopeError | None = None
        result = None
        if self.writes:
            try:
                result = action()
            except GradscopeError as error:
                failure = error
        status = self._of_first(0 if failure is None else failure.exit_code)
        if failure is not None:
            raise failure
        if status:
            raise _KINDS[status]("process 0 refused or failed", hint="what it wrote says why")
        return result

    def wait(self) -> None:
        """Waits until every process is here."""
        if self.count > 1:
            with user_code("waiting for the other processes"):
                multihost_utils.sync_global_devices("gradscope")

    def require_same(self, what: str, tree: Any) -> None:
        """Checks that a pytree has the same values in every process.

        Raises:
            ModelError: It has not.
        """
        if self.count == 1:
            return
        digest = content_hash([np.asarray(full_tensor(leaf)) for leaf in jax.tree_util.tree_leaves(tree)])
        own = np.frombuffer(bytes.fromhex(digest), np.uint8)
        with user_code("comparing with the other processes"):
            every = multihost_utils.process_allgather(own)
        if (every != every[0]).any():
            raise ModelError(
                f"{printable(what)} has other values in one process than in another",
                hint="every process makes all of it: draw from the key or seed that is handed over, and leave the part "
                "of each process to --distributed",
            )

    def _of_first(self, number: int) -> int:
        if self.count == 1:
            return number
        with user_code("waiting for process 0"):
            return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


class Agreement:
    """An `Agreement` makes all processes act on what one knows: that a signal asks for a stop, or that saving is due.

    Of several processes, each hands over what it knows with each step, and acts when it hears from all.

    Args:
        processes: The processes.
        stop: Returns the number of the signal for which the run is to stop, or 0.
        seconds: Seconds between two saved states; None where they are saved by steps.
        every: Steps between two of them; None where they are saved by time.
    """

    def __init__(
        self, processes: Processes, *, stop: Callable[[], int], seconds: float | None, every: int | None
    ) -> None:
        self._processes = processes
        self._stop = stop
        self._seconds = seconds
        self._every = every
        self._saved_at = time.monotonic()
        self._heard = (0, 0)

    def wishes(self) -> Any:
        """Returns what the processes know at a step, for `heard`; it may be on its way."""
        return self._processes.largest(self._known())

    def heard(self, wishes: Any) -> None:
        """Waits for what `wishes` returned, and acts upon it from then on."""
        signal, late = map(int, wishes)
        self._heard = (signal, late)

    def saved(self) -> None:
        """Notes that the state was saved now."""
        self._saved_at = time.monotonic()
        self._heard = (self._heard[0], 0)

    @property
    def signal(self) -> int:
        """The number of the signal for which the run is to stop; 0 for none."""
        return self._agreed()[0]

    def is_save_due(self, number: int) -> bool:
        """Returns whether the state after a number of steps is to be saved."""
        return number % self._every == 0 if self._every is not None else bool(self._agreed()[1])

    def _agreed(self) -> tuple[int, int]:
        return self._known() if self._processes.count == 1 else self._heard

    def _known(self) -> tuple[int, int]:
        late = self._seconds is not None and time.monotonic() - self._saved_at >= self._seconds
        return self._stop(), int(late)
