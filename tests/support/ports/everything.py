"""All ports."""

from __future__ import annotations

from tests.support.ports.networks.convnet import CONVNET
from tests.support.ports.networks.decoder import DECODER
from tests.support.ports.networks.experts import MIXTURE
from tests.support.ports.networks.language import LANGUAGE
from tests.support.ports.networks.mobile import MOBILE
from tests.support.ports.networks.separable import SEPARABLE
from tests.support.ports.networks.speech import SPEECH
from tests.support.ports.networks.text import TEXT
from tests.support.ports.networks.vision import VISION
from tests.support.ports.networks.waves import WAVES
from tests.support.ports.small import SMALL

#: The ports that come with ten faults each, and those that are correct only.
FAULTY = (CONVNET, SEPARABLE, VISION, TEXT, MOBILE, DECODER, SPEECH, LANGUAGE, MIXTURE, WAVES)
PORTS = (*FAULTY, *SMALL)
