"""Operation facts describe single operations inside layers, which are no tensors of the dump.

- `saturation` defines how far a bounded function inside a layer is at its limits.
- `batch_broadcast` defines an operation of a loss that pairs every example with every other.
- `origin` defines the operation in which a NaN or an infinity first arose.
- `out_of_bounds` defines a look-up of what is not there.
- `clip_limits` defines how much of what a clip returns is at its limits.
- `random_mask` defines how much a random mask makes zero.
- `collective` defines an operation by which the devices of a mesh exchange values.
- `rectified` defines a rectifier whose results are the logits of a loss.
- `softmax_use` defines a softmax whose shares weight along another axis.
- `step_function` defines a step function at which the gradient of a tensor's elements ends.
- `fact_fields` reads each of them from its JSON object.
"""

from __future__ import annotations

from gradscope.dump.manifest.operation_facts.batch_broadcast import BatchBroadcast as BatchBroadcast
from gradscope.dump.manifest.operation_facts.clip_limits import Clip as Clip
from gradscope.dump.manifest.operation_facts.collective import Collective as Collective
from gradscope.dump.manifest.operation_facts.origin import OF_GIVEN_VALUES as OF_GIVEN_VALUES
from gradscope.dump.manifest.operation_facts.origin import Origin as Origin
from gradscope.dump.manifest.operation_facts.out_of_bounds import OutOfBounds as OutOfBounds
from gradscope.dump.manifest.operation_facts.random_mask import RandomMask as RandomMask
from gradscope.dump.manifest.operation_facts.rectified import RectifiedLogits as RectifiedLogits
from gradscope.dump.manifest.operation_facts.saturation import Saturation as Saturation
from gradscope.dump.manifest.operation_facts.softmax_use import SoftmaxUse as SoftmaxUse
from gradscope.dump.manifest.operation_facts.step_function import StepFunction as StepFunction
