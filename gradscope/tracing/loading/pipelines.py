"""Input pipelines are functions or iterables of the user's that provide batches one after the other."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

import jax
import numpy as np

from gradscope.errors import UsageError
from gradscope.frameworks.modules.tree_names import tree_names
from gradscope.tracing.loading.loader import named_object, seed_generators
from gradscope.tracing.loading.plain_functions import required_parameters, signature_of
from gradscope.tracing.user_frames import user_code

_FORMS: Final = "give a function of no arguments that returns batches, or of a number that returns that batch"


class Pipeline:
    """A `Pipeline` provides batches by number.

    Args:
        text: The pipeline as a target names it, `package.module:batches` or `data.py:batches("train")`: an iterable of
            batches, a function that returns one, or a function that takes a batch's number and returns the batch.
        seed: Seeds the generators that it may use without a key.

    Raises:
        UsageError: There is no such pipeline, or it is none.
        ModelError: The file does not import, or the function failed.
    """

    def __init__(self, text: str, seed: int) -> None:
        self._text = text
        self._seed = seed
        seed_generators(seed)
        with user_code(f"the pipeline {text}"):
            self._source = named_object(text)
        required = _required_parameters(self._source) if callable(self._source) else []
        if len(required) > 1 or any(each.kind is each.KEYWORD_ONLY for each in required):
            raise UsageError(
                f"{text} needs the arguments {', '.join(each.name for each in required)}, and a pipeline takes none, "
                "or the number of a batch",
                hint=_FORMS,
            )
        self._takes_number = len(required) == 1
        self._batches: Iterator[Any] = iter(())
        self._next: int | None = None

    def leaves(self, number: int) -> dict[str, np.ndarray]:
        """Returns a batch by the names of its leaves. Batches of an iterable are read in order, and skipped ones, too.

        Args:
            number: The number of the batch, from 0.

        Raises:
            UsageError: There are fewer batches.
            ModelError: The pipeline failed.
        """
        argument = f", given {number}, the number of a batch" if self._takes_number else ""
        with user_code(f"the pipeline {self._text}{argument}"):
            batch = self._batch_of_number(number) if self._takes_number else self._batch_in_order(number)
            if batch is None:
                raise UsageError(f"{self._text} ends before batch {number}")
            leaves = map(np.asarray, jax.tree_util.tree_leaves(batch))
            return dict(zip(tree_names(batch), leaves, strict=True))

    def _batch_of_number(self, number: int) -> Any:
        batch = self._source(number)
        if isinstance(batch, Iterator):
            own = "" if self._text.endswith(")") else f"; an argument of your own has a value, '{self._text}(0)'"
            raise UsageError(
                f"{self._text} takes the number of a batch, and returned a {type(batch).__name__} for {number}",
                hint=f"{_FORMS}{own}",
            )
        return batch

    def _batch_in_order(self, number: int) -> Any:
        if self._next is None or number < self._next:
            seed_generators(self._seed)
            self._batches, self._next = iter(self._iterable()), 0
        found = next(itertools.islice(self._batches, number - self._next, None), None)
        self._next = number + 1
        return found

    def _iterable(self) -> Iterable[Any]:
        batches = self._source() if callable(self._source) else self._source
        if not isinstance(batches, Iterable) or isinstance(batches, Mapping):
            raise UsageError(
                f"{self._text} is of type {type(batches).__name__}, expected an iterable of batches",
                hint="return a list of batches, or one batch from a function of its number",
            )
        return cast("Iterable[Any]", batches)


def _required_parameters(function: Any) -> list[inspect.Parameter]:
    signature = signature_of(function)
    return [] if signature is None else required_parameters(signature)
