"""Running mean and variance, mergeable across agents (Chan et al. 1979)."""

from typing import NamedTuple

import jax.numpy as jnp

from mfpo.learning import trees
from mfpo.types import Array, EnvSpec, PyTree, Trajectories

CLIP = 10.0  # normalised observations are cut off here


class Statistics(NamedTuple):
    """Count, mean and sum of squared deviations."""

    n: Array
    mean: Array
    m2: Array


def empty(shape: tuple[int, ...]) -> Statistics:
    """Nothing seen yet: normalising with it changes nothing."""
    return Statistics(jnp.float32(0.0), jnp.zeros(shape), jnp.zeros(shape))


def start(spec: EnvSpec, wanted: bool) -> Statistics | tuple[()]:
    """Empty statistics of an environment's observations; () if they are not wanted. Frames have none."""
    return empty(spec.observation_shape) if wanted and not spec.stack else ()


def observe(seen: Statistics | tuple[()], batch: Trajectories) -> Statistics | tuple[()]:
    """`seen` and what is in the batch; () stays ()."""
    return merge(seen, gather(batch.obs, batch.live)) if seen else ()


def gather(x: Array, present: Array) -> Statistics:
    """The statistics of x [H, D, ...] over the slots that are present [H, D]."""
    weight = present.reshape(present.shape + (1,) * (x.ndim - present.ndim)).astype(x.dtype)
    n = jnp.sum(weight)
    mean = jnp.sum(x * weight, axis=(0, 1)) / jnp.maximum(n, 1.0)
    return Statistics(n, mean, jnp.sum(((x - mean) * weight) ** 2, axis=(0, 1)))


def merge(a: Statistics, b: Statistics) -> Statistics:
    """The statistics of both samples together."""
    n = a.n + b.n
    share = b.n / jnp.maximum(n, 1.0)
    delta = b.mean - a.mean
    return Statistics(n, a.mean + delta * share, a.m2 + b.m2 + delta**2 * a.n * share)


def merge_all(start: PyTree, many: PyTree, mask: Array) -> PyTree:
    """`start` merged with every masked entry of `many` (leading axis); () stays ()."""
    if not start:
        return ()
    many = trees.keep(mask, many)
    n = jnp.sum(many.n)
    mean = jnp.tensordot(many.n, many.mean, axes=1) / jnp.maximum(n, 1.0)
    between = jnp.tensordot(many.n, (many.mean - mean) ** 2, axes=1)
    return merge(start, Statistics(n, mean, jnp.sum(many.m2, axis=0) + between))


def deviation(s: Statistics) -> Array:
    """The standard deviation; 1 before anything was seen and where nothing varies."""
    variance = s.m2 / jnp.maximum(s.n, 1.0)
    return jnp.where(variance > 1e-8, jnp.sqrt(variance), 1.0)


def normalise(s: Statistics | tuple[()], x: Array) -> Array:
    """x in standard units, cut off at ±CLIP; x itself where no statistics are kept."""
    if not s:
        return x
    return jnp.clip((x - s.mean) / deviation(s), -CLIP, CLIP)
