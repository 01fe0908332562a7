"""All ports."""

from __future__ import annotations

from tests.support.ports.convnet import CONVNET
from tests.support.ports.separable import SEPARABLE
from tests.support.ports.vision import VISION

PORTS = (CONVNET, SEPARABLE, VISION)
