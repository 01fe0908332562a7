"""Joins the processes of a distributed run, and leaves them when this one fails."""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
from typing import Any, Final

from gradscope.errors import MachineError, UsageError

#: Seconds after which the processes of a run take one as dead that they do not hear from; JAX's own are 100. Threads of
#: the runtime send the heartbeats, and go on while Python compiles.
HEARTBEAT: Final = 15

#: The two forms of `--distributed`: a word, or an address, the number of processes, and the index of this one.
_AUTO: Final = "auto"
_ADDRESS: Final = re.compile(r"([^,]+:\d+),(\d+),(\d+)")

#: Exit statuses of results, which all processes have together; a signal's is above. All others are failures.
_RESULTS: Final = frozenset({0, 1})
_SIGNALLED: Final = 128

#: Seconds that process 0 stays when it failed: when it ends, the runtime ends the others, who may have yet to say why.
_GRACE_SECONDS: Final = 5.0

#: The argument of `jax.distributed.initialize` that takes the seconds.
_HEARTBEAT: Final = "heartbeat_timeout_seconds"

#: A flag of JAX: its service takes SIGTERM away from this process, which saves its state and says so.
_PREEMPTION: Final = "jax_enable_preemption_service"


def join_processes(how: str) -> None:
    """Makes this process one of several, before the backend of JAX starts.

    Args:
        how: `auto` where the cluster provides the address (Slurm, MPI, a TPU pod, ...); or `HOST:PORT,COUNT,INDEX`.

    Raises:
        UsageError: It is neither.
        MachineError: The processes do not find each other.
    """
    address = _ADDRESS.fullmatch(how)
    if address is None and how != _AUTO:
        raise UsageError(f"--distributed {how!r} is neither 'auto' nor HOST:PORT,COUNT,INDEX")
    import jax

    config: Any = jax.config  # its flags are not typed
    if hasattr(config, _PREEMPTION):
        config.update(_PREEMPTION, False)
    # Older JAX has a heartbeat of its own, which is not set.
    known = inspect.signature(jax.distributed.initialize).parameters
    heartbeat: dict[str, Any] = {_HEARTBEAT: HEARTBEAT} if _HEARTBEAT in known else {}
    try:
        if address is None:
            jax.distributed.initialize(**heartbeat)
        else:
            jax.distributed.initialize(address[1], int(address[2]), int(address[3]), **heartbeat)
    except (RuntimeError, ValueError) as error:
        raise MachineError(
            f"the processes do not find each other: {error}",
            hint="where no cluster has the address, start each process with --distributed HOST:PORT,COUNT,INDEX",
        ) from error


def leave_failed(status: int) -> None:
    """Ends this process where it is one of several and failed: JAX would wait for all others before it ends one.

    Args:
        status: The exit status. With one of a result, all processes end together, which is left to JAX.
    """
    jax: Any = sys.modules.get("jax")
    if status in _RESULTS or status >= _SIGNALLED or jax is None or not jax.distributed.is_initialized():
        return
    if jax.process_index() == 0:
        time.sleep(_GRACE_SECONDS)
    os._exit(status)
