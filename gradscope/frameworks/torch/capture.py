"""`capture` runs a PyTorch module forward and backward once, and writes a dump."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradscope import naming
from gradscope.api.reading import Dump, load
from gradscope.dump.interfaces import RecordSink
from gradscope.dump.manifest.manifest import Manifest, RunFacts
from gradscope.dump.record import SiteFacts
from gradscope.dump.sources.memory_dump import MemoryWriter
from gradscope.dump.writer import DumpWriter
from gradscope.errors import ModelError, UsageError
from gradscope.frameworks.torch.conversion import mapped, numbers_in, tensors_in
from gradscope.frameworks.torch.effective_weights import EffectiveWeights
from gradscope.frameworks.torch.module_calls import ModuleCalls
from gradscope.frameworks.torch.module_names import as_written, plain_name
from gradscope.frameworks.torch.refused_inputs import explained
from gradscope.frameworks.torch.torch_environment import provenance
from gradscope.frameworks.torch.torch_gradients import gradients_of
from gradscope.frameworks.torch.torch_values import Value, Values
from gradscope.frameworks.torch.unchanged import ModuleState, unchanged
from gradscope.naming import printable


def capture(
    module: nn.Module,
    loss_fn: Callable[[Any], Tensor],
    inputs: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    updates: bool = True,
) -> Dump:
    """Runs a module and a loss forward and backward once, and writes a dump such as `gradscope dump` writes.

    The module is left unchanged: its parameters, gradients, buffers, modes and hooks, and the random number generators
    of PyTorch, NumPy and Python, too. Tensors are written as soon as they are computed; the memory is that of the run
    itself, of all parameters' gradients, of what parametrizations compute, of one more tensor, and, on the host, of a
    copy of all parameters until the forward pass has ended.

    A parameter that a parametrization computes, as `weight_norm` does, is written as it is when it is first read, with
    the gradient of all its uses, beside what it is computed from.

    Args:
        module: The module, on its device, in the mode (`train()` or `eval()`) in which it is to run. One that
            `torch.compile` made runs as it was written, without its compiled code, under the names of that.
        loss_fn: Takes the module's output and returns the loss, a real scalar.
        inputs: The inputs: a tensor, a tuple of positional or a mapping of named arguments. Tensors of inexact dtype
            get gradients; numbers and arrays of NumPy are written without one.
        path: The file to write; None to keep the dump in memory.
        force: Whether a file that exists at the path may be replaced.
        updates: Whether the buffers that the run changes, such as running statistics, are written as they are after it,
            too, as `aux`.

    Returns:
        The dump.

    Raises:
        UsageError: The path cannot be used, a tensor's dtype cannot be stored, or an argument is of another kind or
            none that the module takes.
        ModelError: The loss is not a real scalar that depends on a parameter or an input; or a parameter or a buffer
            has no values, as those of a lazy module that has not run yet, or on the device meta, or was made in
            inference mode.
        MachineError: The disk is full or fails.
    """
    _require_kinds(module, loss_fn, path)
    if path is None:
        memory = MemoryWriter()
        return Dump(memory.dump(_run(module, loss_fn, inputs, memory, updates=updates)))
    with DumpWriter(path, force=force) as writer:
        _run(module, loss_fn, inputs, writer, updates=updates)
    return load(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """`_Inputs` are the inputs that the module receives.

    Attributes:
        args: Positional arguments.
        kwargs: Named arguments.
        leaves: The tensors that are differentiated.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    leaves: list[Tensor]


def _run(
    model: nn.Module, loss_fn: Callable[[Any], Tensor], inputs: Any, sink: RecordSink, *, updates: bool
) -> Manifest:
    module = as_written(model)
    _require_data(module)
    values = Values(sink=sink)
    weights = EffectiveWeights(module, values)
    calls = ModuleCalls(module, values, weights)
    facts = provenance(module, [tensor for _, tensor in tensors_in(inputs)])
    with (
        closing(values), _with_gradients(), unchanged(module) as state, torch.compiler.set_stance("force_eager")
    ):  # fmt: skip
        for name, buffer in module.named_buffers():
            values.add_leaf(naming.STATE, plain_name(name), buffer, SiteFacts(index=0))
        module_inputs = _written_inputs(module, inputs, values)
        with weights.observing():
            with explained(module, inputs, module_inputs.args, module_inputs.kwargs), calls.recording():
                output = module(*module_inputs.args, **module_inputs.kwargs)
            state.forward_ended()
            calls.add_root(output)
            if updates:
                _write_updated_buffers(module, state, values)
            loss = _checked(loss_fn(output))
            weights.write(calls.user_of)
            parameters = _write_parameters(module, values, weights, calls, state)
            differentiated = [parameter for parameter, _ in parameters if parameter.requires_grad]
            gradients = gradients_of(loss, differentiated, module_inputs.leaves, calls, values)
        for parameter, value in parameters:
            _write_gradient(values, value, parameter, gradients.get(id(parameter)))
        weights.write_gradients()
        values.finish()
    return sink.commit(
        RunFacts(layers=calls.layers(), ledger=values.ledger(), loss=float(loss.detach()), provenance=facts)
    )


def _require_kinds(module: Any, loss_fn: Any, path: Any) -> None:
    if not isinstance(module, nn.Module):
        made = isinstance(module, type) and issubclass(module, nn.Module)
        hint = f"make one: {module.__name__}(...)" if made else "capture takes the module, the loss, and the inputs"
        what = "a class" if isinstance(module, type) else f"of type {type(module).__name__}"
        raise UsageError(f"module must be a torch.nn.Module, and is {what}", hint=hint)
    if not callable(loss_fn):
        raise UsageError(
            f"loss_fn must be a function of the module's output, and is of type {type(loss_fn).__name__}",
            hint="capture takes the module, the loss, and the inputs",
        )
    if not isinstance(path, str | os.PathLike | None):
        raise UsageError(f"path must be a file to write, and is of type {type(path).__name__}")


def _require_data(module: nn.Module) -> None:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise ModelError(
                f"{printable(plain_name(name))} has no shape before the module has run",
                hint="run a lazy module on a batch once, before it is captured",
            )
        if tensor.is_meta:
            raise ModelError(
                f"{printable(plain_name(name))} has no values: it is on the device meta",
                hint="load or initialise the module's values, such as with to_empty() and load_state_dict()",
            )
        if tensor.is_inference():
            raise ModelError(
                f"{printable(plain_name(name))} was made in inference mode, where PyTorch records no gradients",
                hint="make the module outside of torch.inference_mode(), and load its values with load_state_dict()",
            )


@contextmanager
def _with_gradients() -> Generator[None]:
    """Records what is computed for the backward pass, also where the caller has switched that off."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        yield


def _written_inputs(module: nn.Module, inputs: Any, values: Values) -> _Inputs:
    """Writes the inputs, and returns copies that can be differentiated and that the module may change in place."""
    named = isinstance(inputs, Mapping)
    arguments = dict(cast("Mapping[str, Any]", inputs)) if named else _positional(module, inputs)
    leaves: list[Tensor] = []

    def module_inputs(tensor: Tensor) -> Tensor:
        leaf = tensor.clone() if tensor.is_inference() else tensor.detach()
        if leaf.is_floating_point() or leaf.is_complex():
            leaf = leaf.requires_grad_()
            leaves.append(leaf)
        return leaf.clone()

    copies = {name: mapped(module_inputs, value) for name, value in arguments.items()}
    for path, tensor in tensors_in(copies):
        values.add(naming.INPUT, "/".join(path), tensor, SiteFacts(index=0))
    for path, number in numbers_in(arguments):
        values.write_absent(values.add_leaf(naming.INPUT, "/".join(path), number, SiteFacts(index=0)), frozen=True)
    return _Inputs(args=() if named else tuple(copies.values()), kwargs=copies if named else {}, leaves=leaves)


def _positional(module: nn.Module, inputs: Any) -> dict[str, Any]:
    """Returns positional arguments by the names of the parameters of `forward`, or by their positions."""
    arguments = cast("tuple[Any, ...]", inputs) if isinstance(inputs, tuple) else (inputs,)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    declared = [each.name for each in inspect.signature(module.forward).parameters.values() if each.kind in kinds]
    names = [declared[at] if at < len(declared) else str(at) for at in range(len(arguments))]
    return dict(zip(names, arguments, strict=True))


def _checked(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor):
        raise ModelError(f"loss_fn must return a tensor, and returned {type(loss).__name__}")
    if loss.numel() != 1:
        raise ModelError(
            f"the loss must be a scalar, and has shape {tuple(loss.shape)}",
            hint="reduce it over the batch, with .mean() or .sum()",
        )
    if not loss.is_floating_point():
        raise ModelError(f"the loss must be a real floating-point number to be differentiated, and is {loss.dtype}")
    if not loss.requires_grad:
        raise ModelError("the loss depends on no parameter and no input", hint="do not detach what it is computed from")
    return loss


def _write_updated_buffers(module: nn.Module, state: ModuleState, values: Values) -> None:
    """Writes the buffers that the forward pass changed, such as running statistics, as JAX's models return them."""
    for name, buffer in module.named_buffers():
        if state.has_changed(name, buffer):
            values.add_leaf(naming.AUX, plain_name(name), buffer, SiteFacts(index=0))


def _write_parameters(
    module: nn.Module, values: Values, weights: EffectiveWeights, calls: ModuleCalls, state: ModuleState
) -> list[tuple[nn.Parameter, Value]]:
    """Writes every parameter as it was before the run; a parameter with several names is one value."""
    written: dict[nn.Parameter, Value] = {}
    for dotted, parameter in module.named_parameters(remove_duplicate=False):
        name = plain_name(dotted)
        site = weights.site(name, calls.user_of(name))
        if parameter in written:
            values.add_name(written[parameter], name, site)
        else:
            written[parameter] = values.add_leaf(naming.PARAM, name, state.value(parameter), site)
    return list(written.items())


def _write_gradient(values: Values, value: Value, parameter: nn.Parameter, gradient: Tensor | None) -> None:
    if gradient is not None:
        values.write_gradient(value, gradient)
    else:
        values.write_absent(value, frozen=not parameter.requires_grad)
