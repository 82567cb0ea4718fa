"""Vector algebra on pytrees: parameters and directions are vectors that happen to be stored in pieces."""

import math

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from mfpo.types import Array, PyTree


def ravel(a: PyTree) -> Array:
    """All of a as one vector. To be made once of what loops and sums have made piece by piece.

    Within such a loop XLA makes it a part of every sum, with loads that are masked past the end of a piece. How long
    they take depends on where the pieces lie, most likely on whether there is any memory past their ends: with two
    devices learning took half as long again in every other call.
    """
    vector: Array = ravel_pytree(a)[0]
    return vector


def add(a: PyTree, b: PyTree) -> PyTree:
    """a + b."""
    return jax.tree.map(jnp.add, a, b)


def sub(a: PyTree, b: PyTree) -> PyTree:
    """a - b."""
    return jax.tree.map(jnp.subtract, a, b)


def scale(c: Array | float, a: PyTree) -> PyTree:
    """c * a."""
    return jax.tree.map(lambda x: c * x, a)


def axpy(c: Array | float, a: PyTree, b: PyTree) -> PyTree:
    """c * a + b."""
    return jax.tree.map(lambda x, y: c * x + y, a, b)


def zeros_like(a: PyTree) -> PyTree:
    """The zero vector of a's shape."""
    return jax.tree.map(jnp.zeros_like, a)


def dot(a: PyTree, b: PyTree) -> Array:
    """The inner product."""
    total: Array = jnp.float32(0.0)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        total = total + jnp.sum(x * y)
    return total


def norm(a: PyTree) -> Array:
    """The Euclidean norm."""
    return jnp.sqrt(dot(a, a))


def where(condition: Array, a: PyTree, b: PyTree) -> PyTree:
    """a if the scalar condition holds, else b."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def where_row(mask: Array, a: PyTree, b: PyTree) -> PyTree:
    """Row by row of the leading axis: a's where the mask is true, else b's."""
    return jax.tree.map(lambda x, y: jnp.where(mask.reshape(-1, *(1,) * (x.ndim - 1)), x, y), a, b)


def keep(mask: Array, a: PyTree) -> PyTree:
    """Zero in place of the entries of the leading axis whose mask is false, whatever they hold (a NaN, say)."""
    return jax.tree.map(lambda x: jnp.where(mask.reshape(-1, *(1,) * (x.ndim - 1)), x, 0), a)


def repeat(a: PyTree, times: int) -> PyTree:
    """A new leading axis, along which a is the same."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (times, *x.shape)), a)


def drift(stacked: PyTree, mean: PyTree, mask: Array) -> Array:
    """How far the entries of the leading axis whose mask is true are from their mean, on average."""
    apart: Array = masked_mean(jax.vmap(lambda x: norm(sub(x, mean)))(stacked), mask)
    return apart


def masked_mean(a: PyTree, mask: Array) -> PyTree:
    """The mean over the leading axis of the entries whose mask is true."""
    n = jnp.maximum(jnp.sum(mask), 1)
    return jax.tree.map(lambda x: jnp.sum(x, axis=0) / n, keep(mask, a))


def count_bytes(tree: PyTree) -> int:
    """The size of all arrays: of a message without its envelope."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))
