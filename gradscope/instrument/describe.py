"""`describe` prints what the engine makes of a model: frames, layers, sites and plan, for the engine's developers.

    python -m gradscope.instrument.describe TARGET [--ops] [--batch-size N]

Nothing is compiled or run. Frames are numbered `f0`, `f1`, ... in program order, and `f2:5.0` is the first output of
equation 5 of frame `f2`; `f2:in.1` is the second value that the frame receives.

Why here and not a command (2026-11): what it prints is the vocabulary of `tracing` and `instrument`, which changes with
them and means nothing to a user, whose command is `gradscope inspect`. A plan belongs to it, so it is above `tracing`.
It writes to standard output itself, which otherwise only `cli` does, because `cli` must not depend on these types.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import jax

from gradscope.errors import GradscopeError
from gradscope.instrument.plan import Plan
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.planning import make_plan
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey, Loop, ValueKey
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.loading.loader import load_model
from gradscope.tracing.loading.module_models import with_array_variables
from gradscope.tracing.tracer import Trace, trace_loss
from gradscope.tracing.user_frames import user_code

_FRAME_COLUMNS: Final = ("frame", "in", "kind", "equations", "loops", "path", "gradients", "enter", "leave")


def main(arguments: Sequence[str]) -> int:
    """Describes the model that a command line names on standard output; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gradscope.instrument.describe", description="Describe a trace.")
    parser.add_argument("target", help="the model, as for gradscope dump")
    parser.add_argument("--ops", action="store_true", help="every operation in addition to every layer")
    parser.add_argument("--batch-size", type=int, default=2, metavar="N", help="number of examples (2)")
    options = parser.parse_args(arguments)
    try:
        text = describe_target(options.target, operations=options.ops, batch_size=options.batch_size)
    except GradscopeError as error:
        sys.stderr.write(f"{error.message}\n")
        return error.exit_code
    sys.stdout.write(text)
    return 0


def describe_target(target: str, *, operations: bool, batch_size: int) -> str:
    """Returns the description of a target's model.

    Args:
        target: The model, as for `gradscope dump`.
        operations: Whether operations count as layers.
        batch_size: Number of examples.

    Raises:
        UsageError: There is no such model.
        ModelError: The model's functions fail.
    """
    model = with_array_variables(load_model(target))
    with user_code(f"loss of {model.name}"):
        init_key, batch_key = jax.random.split(jax.random.key(0))
        variables = jax.eval_shape(model.init, init_key)
        batch = jax.eval_shape(lambda key: model.batch(key, batch_size), batch_key)
        trace = trace_loss(model.loss, variables, batch, operations=operations)
    return describe(trace, make_plan(trace, CaptureSpec(operations=operations)))


def describe(trace: Trace, plan: Plan) -> str:
    """Returns the frames, layers, sites and the plan of a trace, one table each."""
    names = {frame.key: f"f{number}" for number, frame in enumerate(trace.root.walk())}
    equations = sum(len(frame.jaxpr.eqns) for frame in trace.root.walk())
    tables = (
        _table("Frames", _FRAME_COLUMNS, _frames(trace, names)),
        _table("Layers", ("layer", "frame", "equations", "reads", "makes", "params", "source"), _layers(trace, names)),
        _table("Sites", ("value", "name", "type", "loops", "primitive", "gradient", "source"), _sites(trace, names)),
        _table("Plan", ("number", "value", "name", "observed", "gradient"), _observed(plan, names)),
    )
    return f"{equations} equations, fingerprint {trace.fingerprint}\n\n" + "\n".join(tables)


def _frames(trace: Trace, names: dict[FrameKey, str]) -> Iterator[Sequence[str]]:
    for frame in trace.root.walk():
        equation = f"{names[frame.key[:-1]]}:{frame.key[-1][0]}" if frame.key else ""
        facts = (str(len(frame.jaxpr.eqns)), _loops(frame.loops), _path(frame), _gradients(frame))
        entering = _counts(entry and entry.how for entry in frame.transfer.inputs)
        yield names[frame.key], equation, frame.kind, *facts, entering, _counts(frame.transfer.outputs)


def _counts(crossings: Iterable[str | None]) -> str:
    """Returns how often values enter or leave in each way, as far as it is known: `1 carry, 3 slice`."""
    return ", ".join(f"{number} {how}" for how, number in Counter(crossings).items() if how is not None)


def _path(frame: Frame) -> str:
    return frame.path.template if frame.path.components else ""


def _gradients(frame: Frame) -> str:
    return "opaque" if frame.opaque else "around" if frame.bypassed else "barred" if frame.forward_only else "pass"


def _layers(trace: Trace, names: dict[FrameKey, str]) -> Iterator[Sequence[str]]:
    for layer in trace.layers:
        reads = ", ".join(_value(value, names) for value in layer.inputs)
        makes = ", ".join(_value(value, names) for value in layer.outputs)
        equations = f"{layer.equations[0]}..{layer.equations[-1]}" if layer.equations else ""
        params = ", ".join(layer.params)
        yield layer.path.template, names[layer.frame.key], equations, reads, makes, params, layer.source or ""


def _sites(trace: Trace, names: dict[FrameKey, str]) -> Iterator[Sequence[str]]:
    for site in trace.sites:
        gradient = "opaque" if site.opaque else site.reach.name.lower()
        kind = _type(site.shape, site.dtype)
        loops = _loops(site.loops)
        yield _value(site.value, names), _name(site), kind, loops, site.primitive or "", gradient, site.source or ""


def _observed(plan: Plan, names: dict[FrameKey, str]) -> Iterator[Sequence[str]]:
    for number, site in enumerate(plan.sites):
        seen = plan.observed(number)
        gradient = "yes" if number in plan.gradients else ""
        aside = plan.bounded[number].function if number in plan.bounded else "sum with noise"
        name = f"({aside})" if number in plan.bounded or number in plan.noisy else _name(site)
        yield str(number), _value(site.value, names), name, _type(seen.shape, seen.dtype), gradient


def _value(value: ValueKey, names: dict[FrameKey, str]) -> str:
    equation = "in" if value.equation == OPERAND else value.equation
    return f"{names[value.frame]}:{equation}.{value.position}"


def _name(site: Site) -> str:
    return " = ".join(name.template for name in site.names) or "(only read)"


def _type(shape: Sequence[int], dtype: object) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def _loops(loops: Sequence[Loop]) -> str:
    return " ".join("?" if loop.length is None else str(loop.length) for loop in loops)


def _table(title: str, heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns rows in columns as wide as their widest cell; columns without a cell are left out."""
    lines = [heading, *rows]
    kept = [at for at in range(len(heading)) if any(line[at] for line in lines[1:])]
    widths = [max(len(line[at]) for line in lines) for at in kept]
    body = ("  ".join(line[at].ljust(width) for at, width in zip(kept, widths, strict=True)).rstrip() for line in lines)
    return f"{title} ({len(lines) - 1})\n" + "".join(f"{line}\n" for line in body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
