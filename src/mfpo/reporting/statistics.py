"""Few runs, honest numbers: means that resist an outlier, and intervals that need no bell curve.

Every statistic reduces one axis (the first unless told), so that one function serves a list of scores and a table of
curves [runs, points].
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


class Statistic(Protocol):
    """What can be bootstrapped: a reduction of one axis."""

    def __call__(self, values: Any, axis: int = 0) -> Any:
        """The statistic of `values` along `axis`."""


def mean(values: ArrayLike, axis: int = 0) -> Floats:
    """The arithmetic mean.

    >>> float(mean([1, 2, 6]))
    3.0
    """
    return np.asarray(np.mean(np.asarray(values, float), axis=axis))


def std(values: ArrayLike, axis: int = 0) -> Floats:
    """The spread of the values themselves (n in the denominator), as in run summaries.

    >>> float(std([1, 3]))
    1.0
    """
    return np.asarray(np.std(np.asarray(values, float), axis=axis))


def iqm(values: ArrayLike, axis: int = 0) -> Floats:
    """The interquartile mean (Agarwal et al. 2021): of n values, the n//4 lowest and the n//4 highest do not count.

    >>> float(iqm([0, 10, 20, 1000]))
    15.0
    """
    ordered = np.sort(np.asarray(values, float), axis=axis)
    n = ordered.shape[axis]
    middle = range(n // 4, n - n // 4)
    return np.asarray(np.mean(np.take(ordered, middle, axis=axis), axis=axis))


def bootstrap_interval(
    values: ArrayLike, statistic: Statistic = mean, samples: int = 2000, seed: int = 0, level: float = 0.95
) -> tuple[Floats, Floats]:
    """The percentile bootstrap interval of a statistic over the first axis (Efron 1979).

    Whole rows are drawn with replacement, so a curve stays a curve. The same seed gives the same interval.

    >>> low, high = bootstrap_interval([3.0, 3.0, 3.0])
    >>> float(low), float(high)
    (3.0, 3.0)
    """
    rows = np.asarray(values, float)
    if rows.ndim == 0 or rows.shape[0] == 0:
        raise ValueError("a bootstrap interval needs at least one value")
    draws = np.random.default_rng(seed).integers(rows.shape[0], size=(samples, rows.shape[0]))
    replicates = np.asarray(statistic(rows[draws], axis=1))
    tail = (1 - level) / 2
    low, high = np.quantile(replicates, [tail, 1 - tail], axis=0)
    return np.asarray(low), np.asarray(high)
