"""Robust aggregation: one vector from those of many agents, some of whom may send anything (Byzantine agents).

A rule maps a stacked tree [N, ...] and a mask [N] of the agents that answered to the aggregate and a mask of the agents
it was made of. An upload that is not finite is removed before every rule. Only agents of the mask count: n of them
answered, f of them are assumed to be Byzantine.

    mean              no defence
    median            coordinate by coordinate                                        (Yin et al. 2018)
    trimmed-mean      coordinate by coordinate, without the f least and f largest     (Yin et al. 2018)
    krum              the vector nearest to its n - f - 2 nearest others              (Blanchard et al. 2017)
    multi-krum        the mean of the n - f - 2 best of them                          (Blanchard et al. 2017)
    geometric-median  the point with the least sum of distances to all, by Weiszfeld  (Pillutla et al. 2022)
    fedpg-br          the mean of those near a vector most agents are near to         (Fan et al. 2021)
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from mfpo.errors import ConfigError, did_you_mean
from mfpo.learning import trees
from mfpo.types import Array, PyTree

RULES = ("mean", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "fedpg-br")
ITERATIONS = 100  # of Weiszfeld
SMOOTHING = 1e-4  # of distances in it, in units of the median one
TINY = 1e-12

Rule = Callable[[PyTree, Array], tuple[PyTree, Array]]  # stacked [N, ...], mask [N] -> aggregate, kept [N]


def make(
    name: str,
    agents: int,
    byzantine: int = 0,
    sigma: float = 1.0,
    delta: float = 0.6,
    trajectories: Array | int = 1,
) -> Rule:
    """The rule called `name` for N agents, `byzantine` of whom may be; what follows is for "fedpg-br".

    With a sigma of 0 that rule takes its scale from the vectors themselves: half of them are near to each other.
    """
    if name not in RULES:
        raise ConfigError(f"There is no aggregation rule {name!r}. {did_you_mean(name, RULES)}")
    check(f"The aggregation rule {name}", tolerated(name, agents), agents, byzantine)
    rules: dict[str, Rule] = {
        "mean": mean,
        "median": median,
        "trimmed-mean": partial(trimmed_mean, byzantine=byzantine),
        "krum": partial(krum, byzantine=byzantine),
        "multi-krum": partial(multi_krum, byzantine=byzantine),
        "geometric-median": geometric_median,
        "fedpg-br": partial(fedpg_br, alpha=byzantine / agents, sigma=sigma, delta=delta, trajectories=trajectories),
    }
    return rules[name]


def check(what: str, most: int, agents: int, byzantine: int) -> None:
    """Raise a `ConfigError` if more are `byzantine` than the `most` that something withstands."""
    if byzantine > most:
        raise ConfigError(
            f"{what} withstands at most {most} Byzantine agents of {agents}, but {byzantine} are assumed; assume "
            "fewer, take more agents or choose another rule."
        )


def tolerated(name: str, agents: int) -> int:
    """The largest number of Byzantine agents among `agents` for which the rule still means something.

    >>> tolerated("median", 10), tolerated("krum", 10), tolerated("mean", 10)
    (4, 3, 0)
    """
    if name == "mean":
        return 0
    return max((agents - 3) // 2 if "krum" in name else (agents - 1) // 2, 0)


def finite(stacked: PyTree, mask: Array) -> Array:
    """The mask without the agents that sent a number that is not finite."""
    for x in jax.tree.leaves(stacked):
        mask = mask & jnp.all(jnp.isfinite(x.reshape(x.shape[0], -1)), axis=1)
    return mask


def mean(stacked: PyTree, mask: Array) -> tuple[PyTree, Array]:
    """The mean of all; one Byzantine agent can move it anywhere."""
    kept = finite(stacked, mask)
    return trees.masked_mean(stacked, kept), kept


def median(stacked: PyTree, mask: Array) -> tuple[PyTree, Array]:
    """In every coordinate the median; that of an even number is the mean of the middle two."""
    kept = finite(stacked, mask)
    n = jnp.sum(kept)
    low, high = jnp.maximum(n - 1, 0) // 2, n // 2

    def of(x: Array) -> Array:
        ranked = _ranked(x, kept)
        return jnp.where(n > 0, 0.5 * ranked[low] + 0.5 * ranked[high], 0.0)

    return jax.tree.map(of, stacked), kept


def trimmed_mean(stacked: PyTree, mask: Array, byzantine: int) -> tuple[PyTree, Array]:
    """In every coordinate the mean without the f least and f largest; the median if too few answered for that."""
    kept = finite(stacked, mask)
    n = jnp.sum(kept)
    cut = jnp.minimum(byzantine, jnp.maximum(n - 1, 0) // 2)
    rank = jnp.arange(mask.shape[0])
    inner = (rank >= cut) & (rank < n - cut)
    return jax.tree.map(lambda x: trees.masked_mean(_ranked(x, kept), inner), stacked), kept


def _ranked(x: Array, kept: Array) -> Array:
    """Every coordinate in ascending order, agents that do not count last."""
    ranked: Array = jnp.sort(jnp.where(kept.reshape(-1, *(1,) * (x.ndim - 1)), x, jnp.inf), axis=0)
    return ranked


def krum(stacked: PyTree, mask: Array, byzantine: int) -> tuple[PyTree, Array]:
    """The vector with the least sum of squared distances to its n - f - 2 nearest others."""
    return _nearest(stacked, mask, byzantine, single=True)


def multi_krum(stacked: PyTree, mask: Array, byzantine: int) -> tuple[PyTree, Array]:
    """The mean of the n - f - 2 vectors Krum likes best."""
    return _nearest(stacked, mask, byzantine, single=False)


def _nearest(stacked: PyTree, mask: Array, byzantine: int, single: bool) -> tuple[PyTree, Array]:
    present = finite(stacked, mask)
    count = jnp.maximum(jnp.sum(present) - byzantine - 2, 1)
    others = ~jnp.eye(mask.shape[0], dtype=bool)
    squared = jnp.where(others, distances(stacked, present) ** 2, jnp.inf)
    near = jnp.arange(mask.shape[0]) < count
    score = jnp.where(present, jnp.sum(jnp.where(near, jnp.sort(squared, axis=1), 0.0), axis=1), jnp.inf)
    # two that are nearest to each other have the same score; the one nearer to all the others is preferred
    total = jnp.sum(jnp.where(others & present, squared, 0.0), axis=1)
    order = jnp.lexsort((total, score, ~present))
    rank = jnp.zeros_like(order).at[order].set(jnp.arange(mask.shape[0]))
    kept = present & (rank < (1 if single else count))
    return trees.masked_mean(stacked, kept), kept


def geometric_median(stacked: PyTree, mask: Array) -> tuple[PyTree, Array]:
    """The point with the least sum of distances, smoothed so that it is unique and no vector is a trap."""
    start, kept = median(stacked, mask)
    safe = trees.keep(kept, stacked)
    nu = SMOOTHING * median(_distance(safe, start), kept)[0] + TINY

    def improve(_: Array, z: PyTree) -> PyTree:
        weight = jnp.where(kept, 1.0 / jnp.sqrt(_distance(safe, z) ** 2 + nu**2), 0.0)
        weight = weight / jnp.maximum(jnp.sum(weight), TINY)
        return jax.tree.map(lambda x, old: old + jnp.tensordot(weight, x - old, axes=1), safe, z)

    return jax.lax.fori_loop(0, ITERATIONS, improve, start), kept


def fedpg_br(
    stacked: PyTree, mask: Array, alpha: float, sigma: float, delta: float, trajectories: Array | int
) -> tuple[PyTree, Array]:
    """The filter of FedPG-BR: the mean of the vectors near the one that most vectors are near to.

    Near is 2 sigma sqrt(V / B) with V = 2 ln(2n / delta) and B trajectories in a gradient, which holds for all honest
    agents with probability 1 - delta if sigma bounds what one trajectory adds. If fewer than (1 - alpha) n are that
    near, 2 sigma is tried, which then always holds. Where sigma is 0, near is twice the least distance within which a
    vector has more than half of all.
    """
    present = finite(stacked, mask)
    n, apart = jnp.sum(present), distances(stacked, present)
    if not sigma:
        dense = jnp.min(jnp.where(present, jnp.sort(apart, axis=1)[:, n // 2], jnp.inf))
        kept = _vote(stacked, present, apart, 2 * dense)
        return trees.masked_mean(stacked, kept), kept
    v = 2 * jnp.log(2 * jnp.maximum(n, 1) / delta)
    first = _vote(stacked, present, apart, 2 * sigma * jnp.sqrt(v / trajectories))
    second = _vote(stacked, present, apart, jnp.float32(2 * sigma))
    enough = jnp.sum(first) >= (1 - alpha) * n - 1e-4
    kept = jnp.where(enough, first, second)
    return trees.masked_mean(stacked, kept), kept


def _vote(stacked: PyTree, present: Array, apart: Array, threshold: Array) -> Array:
    """Who is near the median vector: of those with more than n/2 within the threshold, the one nearest to their mean.

    A vector counts among those near to it. Where nobody has so many, sigma is too small for what is sent, and the
    vector with the nearest (n/2 + 1)-th neighbour takes its place.
    """
    half = jnp.sum(present) // 2
    voters = present & (jnp.sum(apart <= threshold, axis=1) > jnp.sum(present) / 2)
    central = _distance(trees.keep(voters, stacked), trees.masked_mean(stacked, voters))
    central = jnp.where(jnp.any(voters), jnp.where(voters, central, jnp.inf), jnp.sort(apart, axis=1)[:, half])
    chosen = jnp.argmin(jnp.where(present, central, jnp.inf))
    return present & (apart[chosen] <= threshold)


def distances(stacked: PyTree, mask: Array) -> Array:
    """The Euclidean distances [N, N] between all vectors; infinite where one of the two does not count."""
    safe = trees.keep(mask, stacked)
    apart = jax.lax.map(partial(_distance, safe), safe)
    return jnp.where(mask & mask[:, None], apart, jnp.inf)


def _distance(stacked: PyTree, point: PyTree) -> Array:
    """From every vector [N, ...] to a point [N]; no inner products, which would lose small distances of large vectors.

    In units of the largest difference, so that the square of no finite number is infinite.
    """
    pairs = zip(jax.tree.leaves(stacked), jax.tree.leaves(point), strict=True)
    difference = [(x - y).reshape(x.shape[0], -1) for x, y in pairs]
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(x), axis=1) for x in difference]), axis=0)
    unit = jnp.where(largest > 0, largest, 1.0)
    squares = jnp.stack([jnp.sum((x / unit[:, None]) ** 2, axis=1) for x in difference])
    return jnp.where(jnp.isfinite(largest), unit * jnp.sqrt(jnp.sum(squares, axis=0)), jnp.inf)
