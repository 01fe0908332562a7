"""Commands have one module each, with the command's name.

`comparisons` has those that judge a program by another run of it, `runs` those about training runs, and `files` those
about the file of a dump and not what it says.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

#: The commands, in the order of `--help`, each with its module. It is the function of that name there.
COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "dump": "dump",
        "show": "show",
        "compare": "comparisons.compare",
        "report": "report",
        "train": "runs.train",
        "watch": "runs.watch",
        "export": "runs.export",
        "isolate": "isolate",
        "calibrate": "comparisons.calibrate",
        "mesh": "comparisons.mesh",
        "inspect": "inspect",
        "check": "check",
        "verify": "files.verify",
        "recover": "files.recover",
        "explain": "explain",
    }
)
