"""`run_on` runs a command of gradscope in a process that has a number of devices.

JAX decides once, when it starts, which devices a process has. So each number of devices has a process of its own, with
the variables that state it: a CPU is split into as many devices, and of GPUs the first are visible.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, get_type_hints

from gradscope.cli.interrupts import MORE_PROCESSES, Interrupts
from gradscope.errors import MachineError
from gradscope.naming.wording import counted

#: The flag of XLA that JAX_NUM_CPU_DEVICES contradicts.
_XLA_COUNT: Final = re.compile(r"--xla_force_host_platform_device_count=\S*")

#: Variables that list the GPUs which a process sees.
_VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def run_on(count: int, arguments: Sequence[str], interrupts: Interrupts) -> int:
    """Runs a command of gradscope with a number of devices, and returns its exit status; its messages are printed.

    Args:
        count: The number of devices.
        arguments: The command line without the program's name.
        interrupts: Ends that process with this one.

    Returns:
        The exit status.

    Raises:
        MachineError: It cannot be started, or a signal ended it.
    """
    command = [sys.executable, "-m", "gradscope", *arguments]
    # In a session of its own, because a terminal sends Ctrl-C to all processes of one.
    try:
        process = subprocess.Popen(  # noqa: S603 - this program
            command, stdout=subprocess.DEVNULL, env=_environment(count), start_new_session=True
        )
    except OSError as error:
        raise MachineError(f"no process can be started: {error.strerror}", hint=MORE_PROCESSES) from error
    with process:
        interrupts.on_interrupt(process.terminate)
        status = process.wait()
    if status < 0:  # no shell says of it what it says of a command
        raise MachineError(
            f"the process on {counted(count, 'device')} was ended by {signal.Signals(-status).name}",
            hint="SIGKILL ends a process when memory runs out, too: request fewer devices, or a smaller batch",
        )
    return status


def _environment(count: int) -> dict[str, str]:
    """Returns the variables of a process with so many devices."""
    flags = _XLA_COUNT.sub("", os.environ.get("XLA_FLAGS", ""))
    visible = {
        name: ",".join(os.environ.get(name, ",".join(map(str, range(count)))).split(",")[:count]) for name in _VISIBLE
    }
    # What is imported from the present folder here, as `python -m` does, is not to come before the installed package.
    return {**os.environ, **visible, "XLA_FLAGS": flags, "JAX_NUM_CPU_DEVICES": str(count), "PYTHONSAFEPATH": "1"}


def spelled(options: Any) -> list[str]:
    """Returns the command line that sets a group of options to the values that they have.

    Args:
        options: The group, a dataclass whose fields are annotated with their options.
    """
    hints: Mapping[str, Any] = get_type_hints(type(options), include_extras=True)
    return [
        word
        for field in fields(options)
        for word in _words(field.name, hints[field.name].__metadata__, getattr(options, field.name))
    ]


def _words(name: str, metadata: Sequence[Any], value: Any) -> Iterator[str]:
    (option,) = (each for each in metadata if hasattr(each, "param_decls"))
    first = next((each for each in option.param_decls or () if each.startswith("--")), f"--{name.replace('_', '-')}")
    positive, _, negative = first.partition("/")
    if isinstance(value, bool):
        yield from (word for word in [positive if value else negative] if word)
    elif value is not None:
        for each in value if isinstance(value, list | tuple) else [value]:
            # With an equals sign, so that a value may begin with a dash.
            yield f"{positive}={each}"
