"""All ports."""

from __future__ import annotations

from tests.support.ports.convnet import CONVNET
from tests.support.ports.separable import SEPARABLE
from tests.support.ports.small import SMALL
from tests.support.ports.vision import VISION

#: The ports that come with ten faults each, and those that are correct only.
FAULTY = (CONVNET, SEPARABLE, VISION)
PORTS = (*FAULTY, *SMALL)
