"""Some faults of a loss are those of its program, whatever its numbers are, so that a run states them at once.

So is some of what may be meant, which a dump says beside its findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gradscope.history.history_rows import LossFault
from gradscope.naming import printable
from gradscope.naming.wording import counted
from gradscope.tracing.lookup.batch_broadcasts import batch_broadcasts
from gradscope.tracing.lookup.functions.bounded_functions import BoundedFunction, bounded_functions
from gradscope.tracing.lookup.functions.classes_over_examples import classes_over_examples
from gradscope.tracing.lookup.functions.drawn.repeated_draws import DrawnFor, repeated_draws
from gradscope.tracing.lookup.functions.given_statistics import given_statistics
from gradscope.tracing.lookup.functions.rectified_logits import rectified_logits
from gradscope.tracing.tracer import Trace


def loss_faults(traces: Iterable[Trace]) -> tuple[LossFault, ...]:
    """Returns the faults of the programs of some losses, by the rules of findings or the words of a dump; each once.

    Args:
        traces: The losses.
    """
    return tuple(dict.fromkeys(each for trace in traces for each in _faults(trace)))


def _faults(trace: Trace) -> Iterator[LossFault]:
    yield from (LossFault("broadcast", each.sentence, each.source) for each in batch_broadcasts(trace))
    yield from (
        LossFault("saturated", _again(each), each.site.source) for each in bounded_functions(trace) if each.again
    )
    for each in rectified_logits(trace):
        yield LossFault("squashed" if each.is_bounded else "rectified", each.sentence, each.source)
    yield from (LossFault("softmax", each.sentence, each.source) for each in classes_over_examples(trace))
    if places := given_statistics(trace):
        yield LossFault("evaluation", _given(places), next(filter(None, places), None))
    for what, drawn in repeated_draws(trace).items():
        yield _repeated(what, drawn, "its key is made of a number, and of no argument of the loss")


def same_key(what: DrawnFor, places: Sequence[str | None]) -> LossFault:
    """Returns what is to be said of masks, or of noise, whose key is the same at each step.

    Args:
        what: Which of the two.
        places: Their places, `file:line`; None where unknown.
    """
    return _repeated(what, places, "the step gives the loss the same key each time")


def same_averages(names: Sequence[str], count: int) -> LossFault:
    """Returns what is to be said of running averages that are the same at each step, though the loss returns new ones.

    Args:
        names: The names of those that are arguments of the loss.
        count: How many there are.
    """
    known = [printable(each) for each in names[:1]]
    others = [] if not known else [f"{counted(count - 1, 'other')}"] if count > 1 else []
    what = " and ".join([*known, *others]) or counted(count, "running average")
    return LossFault(
        "stale",
        f"the loss is given the same running statistics at every step ({what}), and returns new ones, which the step "
        "does not hand on: in evaluation they are still those of the start",
    )


def same_state(name: str) -> LossFault:
    """Returns what is to be said of a state that a step is given as it was at each step, though it returns a new one.

    Args:
        name: What the step calls it.
    """
    return LossFault(
        "stale",
        f"the loop gives the step the same {printable(name)} at every step, and not what the step returns in its "
        "place: hand that on",
        None,
    )


def same_state_returned(name: str) -> LossFault:
    """Returns what is to be said of an optimizer's state that a step returns as it is given.

    Args:
        name: What the step calls it.
    """
    return LossFault(
        "stale",
        f"the step returns {printable(name)} as it is given, and not the state that the optimizer makes of it, so that "
        "moments and the count of the steps, of which a schedule takes the rate, stay what they were: return that",
        None,
    )


def _repeated(what: DrawnFor, places: Sequence[str | None], why: str) -> LossFault:
    stays = "random mask{} drops the same elements" if what == "mask" else "random noise{} is the same"
    return LossFault(
        "repeated",
        f"the {stays.format(_at(places))} at every step, as {why}: hand it a key that is split or folded at each step",
        next(filter(None, places), None),
    )


def _at(places: Sequence[str | None]) -> str:
    known = [each for each in places if each is not None]
    more = f" and at {len(known) - 1:,} other places" if len(known) > 2 else ""
    more = f" and {known[1]}" if len(known) == 2 else more
    return f" at {known[0]}{more}" if known else ""


def _given(places: Sequence[str | None]) -> str:
    return (
        f"the norm{_at(places)} takes its mean and variance from what the step is given, as in evaluation, and not "
        "from the batch"
    )


def _again(function: BoundedFunction) -> str:
    place = "" if function.site.source is None else f" at {function.site.source}"
    return (
        f"the result of the {function.function}{place} goes through another one, as of a loss that takes logits: "
        "differences of at most 1 remain of them"
    )
