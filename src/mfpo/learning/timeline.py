"""Work on trajectories whose time axis is padded, without paying for the padding.

Batches are allocated for the longest possible episode, but at the start of training nearly all slots are dead. These
helpers walk over the time axis in blocks and stop at the longest live episode.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from mfpo.learning import trees
from mfpo.types import TIME_BLOCK, Array, Key, PyTree, Trajectories


def _blocks(length: Array) -> Array:
    return (length + TIME_BLOCK - 1) // TIME_BLOCK


def _block(arrays: PyTree, i: Array) -> PyTree:
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, i * TIME_BLOCK, TIME_BLOCK), arrays)


def sum_over_time(fn: Callable[..., PyTree], arrays: tuple[Array, ...], length: Array) -> PyTree:
    """The sum of fn(*block) over the blocks of `arrays` that begin before `length`."""
    shapes = jax.eval_shape(lambda: fn(*_block(arrays, jnp.int32(0))))
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.fori_loop(0, _blocks(length), lambda i, total: trees.add(total, fn(*_block(arrays, i))), zero)


def map_over_time(fn: Callable[..., Array], arrays: tuple[Array, ...], length: Array) -> Array:
    """fn(*block) for every block that begins before `length`, joined along time; zeros after that."""
    shape = jax.eval_shape(lambda: fn(*_block(arrays, jnp.int32(0))))
    out = jnp.zeros((arrays[0].shape[0], *shape.shape[1:]), shape.dtype)

    def body(i: Array, out: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(out, fn(*_block(arrays, i)), i * TIME_BLOCK, axis=0)

    result: Array = jax.lax.fori_loop(0, _blocks(length), body, out)
    return result


def sample_live(batch: Trajectories, key: Key, n: int) -> tuple[Array, Array]:
    """Time and trajectory indices of n live slots, spread evenly over all of them with a random offset each.

    The live slots of a trajectory are its first ones, so they can be counted off without a search.
    """
    lengths = jnp.sum(batch.live, axis=0)
    ends = jnp.tri(lengths.shape[0], dtype=jnp.int32) @ lengths
    number = jnp.floor((jnp.arange(n) + jax.random.uniform(key, (n,))) / n * ends[-1]).astype(jnp.int32)
    number = jnp.minimum(number, ends[-1] - 1)  # rounding must not lead past the last one
    trajectory = jnp.sum(number[:, None] >= ends, axis=1)
    return number - (ends - lengths)[trajectory], trajectory
