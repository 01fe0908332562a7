"""Saving the finished tensors of a dump that was never finished: a `.partial` of a killed run, or a dump cut short.

Each member describes itself, so no directory is needed: the file is walked from the start, header by header, up to the
first member that is not whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gradscope.arrays.dtypes import is_key
from gradscope.dump.faults import located
from gradscope.dump.inputfile import InputFile
from gradscope.dump.manifest import MEMBER
from gradscope.dump.memberfacts import logical_dtype
from gradscope.dump.membernames import key_of_member
from gradscope.dump.npyheader import PREFIX_LIMIT, parse_npy_header
