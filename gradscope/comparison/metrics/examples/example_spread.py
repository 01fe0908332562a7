"""`ExampleError` compares the error of per-example gradients with the spread of the batch, as noise and as bias.

With the gradients g_i of B examples in the reference, g'_i in the candidate, d_i = g'_i - g_i, and means over the
examples:

    spread of the batch   sigma^2 = sum |g_i - mean g|^2 / (B - 1)
    error                 e^2     = sum |d_i|^2 / B
    its random part       s^2     = sum |d_i - mean d|^2 / (B - 1)
    its systematic part   b^2     = |mean d|^2 - s^2 / B, and 0 where that is less

The metrics are fractions of the batch's own spread: `spread` is e / sigma, `random` s / sigma, `bias` b / sigma.

Why these metrics: training follows the mean of noisy gradients. Random error averages out with the batch's own noise,
and low precision that adds a hundredth of that noise does no harm. A bias is the same in every example, and no batch is
large enough to average it out. |mean d|^2 overestimates the squared bias by the random error of a mean of B examples,
s^2 / B in expectation. Without that the estimate is unbiased, and e^2 = s^2 + b^2 except where b is clamped to 0.

A bias is called *systematic* where it exceeds chance. b^2 is the mean of <d_i, d_j> over all pairs of examples, to
which chance adds nothing in expectation. A jackknife over groups of examples estimates its standard error, however the
elements of a gradient are correlated. Without a bias the jackknife is conservative: at the limit used here, it took
chance for bias in less than 1 % of simulated runs with six examples or more (errors of one element to hundreds, normal
and heavy-tailed), and in less than 4 % with three examples.

Sharp edges: a single example has no spread, and two examples do not distinguish bias from chance. An element of the
parameter is used where it is finite in every example of both dumps and its squares are finite in float64.

References:
    J. N. Arvesen, "Jackknifing U-statistics", The Annals of Mathematical Statistics 40 (1969) 2076-2100.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

import numpy as np

from gradscope.dump.record import Json
from gradscope.naming.wording import percent

#: The largest number of groups of the jackknife; examples are assigned to groups in rotation.
GROUPS: Final = 16

#: The number of standard errors above which a bias exceeds chance.
_SURE: Final = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleError:
    """ExampleError stores the error of per-example gradients; the errors of several parameters add up.

    Attributes:
        count: Number of examples.
        batch_variance: sigma^2, summed over elements.
        random_variance: s^2.
        products: <D_m, D_n> of the sums D of the errors in every two groups of examples, row by row; empty where the
            gradients are equal.
    """

    count: int
    batch_variance: float = 0.0
    random_variance: float = 0.0
    products: tuple[float, ...] = ()

    def __add__(self, other: ExampleError) -> ExampleError:
        pairs = zip_longest(self.products, other.products, fillvalue=0.0)
        return ExampleError(
            count=self.count,
            batch_variance=self.batch_variance + other.batch_variance,
            random_variance=self.random_variance + other.random_variance,
            products=tuple(one + another for one, another in pairs),
        )

    @property
    def spread(self) -> float:
        """The error of an example as a fraction of the batch's own spread; 0/0 is 0, x/0 is inf."""
        within = self.random_variance * (self.count - 1) / self.count
        return self._share(within + self._mean_square)

    @property
    def random(self) -> float:
        """The random part of the error as a fraction of the batch's own spread."""
        return self._share(self.random_variance)

    @property
    def bias(self) -> float:
        """The systematic part of the error as a fraction of the batch's own spread."""
        return self._share(max(self._mean_square - self.random_variance / self.count, 0.0))

    @property
    def standard_errors(self) -> float | None:
        """The estimated squared bias in units of its standard error; None for fewer than three examples."""
        groups = min(self.count, GROUPS)
        if groups < 3:
            return None
        if not self.products:
            return 0.0
        sizes = np.array([len(range(group, self.count, groups)) for group in range(groups)])
        means = np.reshape(self.products, (groups, groups)) / np.outer(sizes, sizes)
        rows = means.sum(axis=1) - means.diagonal()
        estimate = rows.sum() / (groups * (groups - 1))
        without = (rows.sum() - 2 * rows) / ((groups - 1) * (groups - 2))
        error = math.sqrt((groups - 1) / groups * np.square(without - without.mean()).sum())
        if error:
            return float(estimate / error)
        return math.copysign(math.inf, estimate) if estimate else 0.0

    @property
    def systematic(self) -> bool:
        """Whether the bias exceeds chance."""
        found = self.standard_errors
        return found is not None and found > _SURE

    @property
    def sentence(self) -> str:
        """The error as a sentence: its size, its random part and its bias."""
        if math.isinf(self.spread):
            return "Per example there is an error, and the batch has no spread of its own to compare it with."
        size = (
            f"Per example the error is {percent(self.spread)} of the batch's own spread: {percent(self.random)} random"
        )
        if self.systematic:
            return f"{size}, {percent(self.bias)} systematic bias."
        return f"{size}, {percent(self.bias)} bias, which {self.count} examples do not tell from chance."

    def columns(self) -> dict[str, Json]:
        """Returns the metrics by the names of their columns."""
        return {"spread": self.spread, "random": self.random, "bias": self.bias}

    def to_json(self) -> dict[str, Json]:
        """Returns the metrics, whether the bias is systematic, and the sentence."""
        standard_errors = self.standard_errors
        return {
            "count": self.count,
            **self.columns(),
            **({} if standard_errors is None else {"standard_errors": standard_errors}),
            "systematic": self.systematic,
            "sentence": self.sentence,
        }

    @property
    def _mean_square(self) -> float:
        return max(sum(self.products), 0.0) / self.count**2

    def _share(self, variance: float) -> float:
        if self.batch_variance:
            return math.sqrt(variance / self.batch_variance)
        return math.inf if variance else 0.0
