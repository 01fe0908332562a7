"""Several tensors of a run may be one value, which has one record, and its gradient another.

A *value* is the output of one autograd node. A module that returns another module's output returns the same value,
whatever Python object it is in. After an in-place operation the object has another value. Where gradients are off, as
in a checkpoint that computes its part again later, there are no nodes: an unchanged Python object is the same value.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
from torch import Tensor, is_grad_enabled
from torch.utils.hooks import RemovableHandle

from gradscope import naming
from gradscope.arrays.dtypes import is_complex, is_floating
from gradscope.dump.interfaces import RecordSink
from gradscope.dump.manifest.manifest import Ledger, LedgerLine
from gradscope.dump.record import Reason, Record, SiteFacts
from gradscope.frameworks.torch.changed_views import View, observe_changed, view_of
from gradscope.frameworks.torch.conversion import changes_of, digest_of, dtype_name, shape_of, to_numpy
from gradscope.naming.paths import without_occurrence
from gradscope.stats import TensorStats, activation_stats, tensor_stats
from gradscope.stats.power import Power, power_of

#: Where a value is that is not captured.
_HIDDEN: Final = "inside torch.vmap, torch.func.grad or another function transform"

#: The autograd node of a reentrant checkpoint.
REENTRANT: Final = "CheckpointFunctionBackward"

#: The autograd node that made a value, and the number of the output.
_Identity: TypeAlias = tuple[Any, int]


@dataclass(slots=True, kw_only=True)
class Value:
    """A `Value` is one value of a run.

    Attributes:
        family: Its family.
        names: Its names, the first its own, each with its site; empty for one that a module receives and none returns.
        dtype: Its logical dtype's name.
        shape: Its shape.
        power: The power of the value; None for one that has none.
        gradient_power: The power of its gradient; None where there is none, or none yet.
        gradient: Whether its gradient has arrived.
        digest: The hash of a value that has no autograd node, until its gradient is observed; "" for another.
        constant: Whether PyTorch computes no gradient of it, as nothing is differentiated that it is computed from.
    """

    family: str
    names: dict[str, SiteFacts]
    dtype: str
    shape: tuple[int, ...]
    power: Power | None = None
    gradient_power: Power | None = None
    gradient: bool = False
    digest: str = ""
    constant: bool = False

    @property
    def name(self) -> str:
        """The value's own name."""
        return next(iter(self.names))

    def record(self, family: str, name: str, **facts: Any) -> Record:
        """Returns a record of it, or of its gradient, under one of its names."""
        facts = {"array": None, "stats": {}, "site": self.names[name], **facts}
        return Record(family=family, name=name, shape=self.shape, dtype=self.dtype, **facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    """`_Object` is a tensor's Python object as it was when its value was seen; it does not keep the tensor alive."""

    tensor: weakref.ref[Tensor]
    version: int
    digest: str
    value: Value

    def is_as_in(self, tensor: Tensor) -> bool:
        """Returns whether it is the object of a tensor that no operation has changed in place since."""
        # What changes `tensor.data` counts no change of the tensor.
        return self.tensor() is tensor and self.version == changes_of(tensor) and self.digest == digest_of(tensor)


@dataclass(slots=True, kw_only=True)
class Values:
    """`Values` write values and gradients, and know which tensors are the same value.

    Attributes:
        sink: Receives the records.
        differentiating: Whether the loss is being differentiated. A gradient that the loss itself takes, as a penalty
            on gradients does, is another one than that of the loss.
    """

    sink: RecordSink
    differentiating: bool = False
    _known: dict[_Identity, Value] = field(default_factory=dict[_Identity, Value])
    _objects: dict[int, _Object] = field(default_factory=dict[int, _Object])
    _values: list[Value] = field(default_factory=list[Value])
    _captured: int = 0
    _missing: list[LedgerLine] = field(default_factory=list[LedgerLine])
    _views: list[View] = field(default_factory=list[View])
    _hooks: list[RemovableHandle] = field(default_factory=list[RemovableHandle])

    def add(self, family: str, name: str, tensor: Tensor, site: SiteFacts) -> Value:
        """Writes a tensor, or another name of a value that is written already; its gradient is when that arrives."""
        known = self.known(tensor)
        if known is not None and known.names and known.family == family:
            self.add_name(known, name, site)
            return known
        value = self._remember(family, tensor) if known is None or known.names else known
        return self.write_value(value, name, tensor, site)

    def add_name(self, value: Value, name: str, site: SiteFacts) -> None:
        """Writes another name of a value, with the site of that name, but for the value's place among the others."""
        value.names[name] = replace(site, index=value.names[value.name].index)
        self._write_alias(value, value.family, name)

    def add_leaf(self, family: str, name: str, tensor: Tensor, site: SiteFacts) -> Value:
        """Writes a tensor that the run does not compute: a parameter or a buffer."""
        return self.write_value(_described(family, tensor), name, tensor, site)

    def named(self, family: str, name: str, tensor: Tensor) -> Value:
        """Returns a value of a name that is written later."""
        value = _described(family, tensor)
        value.names[name] = SiteFacts(index=0)
        return value

    def place(self, value: Value, tensor: Tensor) -> None:
        """Makes what an autograd node has computed a value."""
        if tensor.grad_fn is not None:
            self._known[tensor.grad_fn, tensor.output_nr] = value

    def add_hidden(self, name: str) -> None:
        """Accounts for a value, and its gradient, that a function transform keeps to itself."""
        for family in (naming.ACTIVATION, naming.ACTIVATION_GRAD):
            self._missing.append(LedgerLine(name=name, family=family, reason="opaque", detail=_HIDDEN))

    def measure(self, tensor: Tensor) -> Value:
        """Returns the value of a tensor that a module receives; one without a name is measured and not written."""
        known = self.known(tensor)
        if known is not None:
            return known
        value = self._remember(naming.ACTIVATION, tensor)
        value.power = power_of(tensor_stats(to_numpy(tensor), tier="core"))
        return value

    def known(self, tensor: Tensor) -> Value | None:
        """Returns the value of a tensor; None where it is new."""
        found = None if tensor.grad_fn is None else self.at(tensor.grad_fn, tensor.output_nr)
        if found is not None or tensor.is_inference():
            return found
        origin = _passed_on(tensor)
        if origin is not tensor:
            found = self.known(origin)
        elif (seen := self._objects.get(id(tensor))) is not None and seen.is_as_in(tensor):
            found = seen.value
        if found is not None and tensor.grad_fn is not None:
            # What a checkpoint has returned has a node from then on. A part of its gradient arrives there, that of what
            # is behind the checkpoint; the whole does where it is computed again.
            self._known[tensor.grad_fn, tensor.output_nr] = found
        return found

    def at(self, node: Any, number: int) -> Value | None:
        """Returns the value that is the output of a number of an autograd node; None where it is unknown."""
        return self._known.get((node, number))

    def recomputed(self, name: str, tensor: Tensor) -> None:
        """Makes the gradient of a tensor that of a value which was computed without gradients, and is computed again.

        Args:
            name: The name of the value, without the occurrence of its call.
            tensor: The tensor, whose gradient arrives later.
        """
        if not tensor.requires_grad:
            return
        digest = digest_of(tensor)
        for value in (each for each in self._values if each.names and each.family == naming.ACTIVATION):
            # By its other names, it is what a later checkpoint was given: only a part of its gradient arrives there.
            if value.digest == digest and without_occurrence(value.name) == name:
                self._observe(tensor, value)
                return

    def write_gradient(self, value: Value, gradient: Tensor) -> None:
        """Writes the gradient with respect to a value, under all its names."""
        value.gradient = True
        array = to_numpy(gradient.conj())  # JAX's; PyTorch has the other one of the two conjugates
        stats = tensor_stats(array, tier="full" if value.names else "core")
        value.gradient_power = power_of(stats)
        if value.names:
            family = _gradient_family(value)
            self._put(value.record(family, value.name, array=array, stats=stats.to_json()))
            for name in list(value.names)[1:]:
                self._write_alias(value, family, name)

    def write_absent(self, value: Value, *, frozen: bool = False) -> None:
        """Writes that there is no gradient with respect to a value, and why."""
        differentiable = is_floating(value.dtype) or is_complex(value.dtype)
        reason: Reason = "non-differentiable" if not differentiable else "frozen" if frozen else "disconnected"
        family = _gradient_family(value)
        for name in value.names:
            self.sink.add(value.record(family, name, absent=reason))
            self._missing.append(LedgerLine(name=name, family=family, reason=reason))

    def begin_backward(self, nodes: Sequence[Any]) -> None:
        """Begins the backward pass, along the nodes of a graph."""
        self.differentiating = True
        self._hooks += observe_changed(self._views, nodes)

    def finish(self) -> None:
        """Accounts for the gradients that never arrived."""
        for value in self._values:
            if value.names and not value.gradient:
                self.write_absent(value, frozen=value.constant)

    def close(self) -> None:
        """Ends observing: tensors that outlive the run, as a parameter that a module returns, lose their hooks."""
        for hook in self._hooks:
            hook.remove()

    def ledger(self) -> Ledger:
        """Returns the ledger of what was captured and what was not."""
        return Ledger(captured=self._captured, missing=tuple(self._missing))

    def _remember(self, family: str, tensor: Tensor) -> Value:
        value = _described(family, tensor)
        self._values.append(value)
        if tensor.grad_fn is None:
            value.digest = digest = digest_of(tensor)
            if not tensor.is_inference():
                known = _Object(tensor=weakref.ref(tensor), version=changes_of(tensor), digest=digest, value=value)
                self._objects[id(tensor)] = known
        else:
            self._known[tensor.grad_fn, tensor.output_nr] = value
        if tensor.requires_grad:
            self._observe(tensor, value)
        return value

    def _observe(self, tensor: Tensor, value: Value) -> None:
        """Has the gradient of a tensor written as that of a value, when it arrives."""
        value.digest = ""  # what is observed is not looked for when it is computed again
        # A hook stays with the present value of a tensor that is no view, whatever is done in place.
        self._hooks.append(tensor.register_hook(lambda gradient: self._arrived(value, gradient)))
        if (view := view_of(tensor, lambda gradient: self._arrived(value, gradient))) is not None:
            self._views.append(view)

    def _arrived(self, value: Value, gradient: Tensor | None) -> None:
        # A function with a rule of its own may return None, for which PyTorch calls the hooks, too.
        if self.differentiating and gradient is not None:
            self.write_gradient(value, gradient)

    def write_value(self, value: Value, name: str, tensor: Tensor, site: SiteFacts) -> Value:
        """Writes a value under a name."""
        value.names[name] = site
        array = to_numpy(tensor)
        stats = _statistics(value.family, array, site.primitive)
        self._put(value.record(value.family, name, array=array, stats=stats.to_json()))
        value.power = power_of(stats)
        return value

    def _put(self, record: Record) -> None:
        self.sink.add(record)
        self._captured += 1

    def _write_alias(self, value: Value, family: str, name: str) -> None:
        self.sink.add(value.record(family, name, alias_of=naming.key_of(family, value.name)))


def _passed_on(tensor: Tensor) -> Tensor:
    """Returns what a reentrant checkpoint was given and returns as it is, of which it makes a view; else the tensor."""
    base = tensor._base  # noqa: SLF001 - PyTorch has no public name for it
    if base is None or tensor.grad_fn is None or tensor.grad_fn.name() != REENTRANT:
        return tensor
    whole = (tensor.shape, tensor.stride(), tensor.data_ptr()) == (base.shape, base.stride(), base.data_ptr())
    return base if whole else tensor


def _described(family: str, tensor: Tensor) -> Value:
    # Where gradients are off, as in a checkpoint or around a teacher, it may depend on more.
    constant = is_grad_enabled() and not tensor.requires_grad
    return Value(family=family, names={}, dtype=dtype_name(tensor), shape=shape_of(tensor), constant=constant)


def _statistics(family: str, array: np.ndarray[Any, Any], primitive: str | None) -> TensorStats:
    if family != naming.ACTIVATION:
        return tensor_stats(array)
    return activation_stats(array, primitive=primitive, unit_axis=1 if array.ndim in (4, 5) else -1)


def _gradient_family(value: Value) -> str:
    family = naming.gradient_family(value.family)
    assert family is not None, "only values that can have gradients have a family of gradients"
    return family
