"""What the analysis speaks about, measured while training: consensus error, gradient error and ||grad J||².

The squared norm of a noisy vector is too large by its variance. So squares of gradients are taken as inner products of
two estimates with independent errors, whose expectation is the square of what both estimate. Such an estimate may be
negative; it is left so, for cutting it off would make it too large on average.
"""

import jax
import jax.numpy as jnp

from mfpo.learning import trees
from mfpo.types import Array, Metrics, PyTree

OF_UPLOADS = ("drift", "consensus_error", "gradient_norm_squared")  # what says how single uploads differ


def consensus(directions: PyTree, mean: PyTree, mask: Array) -> Metrics:
    """How far agents agree on the direction, of those whose mask [N] is true; `mean` is theirs.

    consensus_error        sum_i ||u_i - mean||², the δ of the paper
    gradient_norm_squared  mean of <u_i, u_j> over i != j = ||mean||² - consensus_error / (N (N - 1)); NaN for N < 2

    What the agents drew themselves is independent, so its errors cancel in the inner products of two of them. What is
    left is the error of the direction they all began the round with, ν^K of it.
    """
    apart = jax.vmap(lambda u: _square(trees.sub(u, mean)))(directions)
    error = jnp.sum(jnp.where(mask, apart, 0.0))
    n = jnp.sum(mask).astype(error.dtype)
    pairs = n * (n - 1)
    norm = _square(mean) - error / jnp.maximum(pairs, 1)
    return {"consensus_error": error, "gradient_norm_squared": jnp.where(pairs > 0, norm, jnp.nan)}


def against_reference(direction: PyTree, one: PyTree, other: PyTree) -> Metrics:
    """||direction - grad J||² and ||grad J||², from two independent estimates of grad J."""
    error = trees.dot(trees.sub(direction, one), trees.sub(direction, other))
    return {"gradient_error": error, "reference_gradient_norm_squared": trees.dot(one, other)}


def _square(a: PyTree) -> Array:
    return trees.dot(a, a)
