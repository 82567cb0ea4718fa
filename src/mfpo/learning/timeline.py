"""Work on trajectories whose time axis is padded, without paying for the padding.

Batches are allocated for the longest possible episode, but at the start of training nearly all slots are dead. These
helpers walk over the time axis in blocks and stop at the longest live episode.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from mfpo.learning import trees
from mfpo.types import TIME_BLOCK, Array, Key, PyTree, Trajectories

CACHED = 1_500_000  # bytes: forty stacks of four frames


def segment_length(env_steps: int, columns: int) -> int:
    """Slots in each of D segments that hold so many steps together; whole blocks, if one is not enough. 0: no segments.

    >>> segment_length(1000, 4), segment_length(1001, 4), segment_length(128, 8), segment_length(0, 4)
    (250, 300, 16, 0)
    """
    slots = -(-env_steps // columns)
    return slots if slots <= TIME_BLOCK else -(-slots // TIME_BLOCK) * TIME_BLOCK


def _steps(array: Array, most: int) -> int:
    """Of one block: `most`, but a part of it of an array of frames, which are to stay in the processor's cache."""
    a_step = array.nbytes // array.shape[0]
    return next((n for n in range(most, 1, -1) if most % n == 0 and n * a_step <= CACHED), 1)


def over_time(
    fn: Callable[..., tuple[PyTree, PyTree]], arrays: tuple[Array, ...], length: Array, most: int = TIME_BLOCK
) -> tuple[PyTree, PyTree]:
    """fn(*block) -> (to add, to join) for every block that begins before `length`: the sum, and the blocks along time.

    A block is of `most` steps (all, if there are fewer) or a part of that, for which the size of the first of the
    arrays matters. What is joined holds zeros after the last.
    """
    slots = arrays[0].shape[0]
    steps = _steps(arrays[0], min(most, slots))

    def block(i: Array) -> list[Array]:
        return [jax.lax.dynamic_slice_in_dim(x, i * steps, steps) for x in arrays]

    add, join = jax.eval_shape(lambda: fn(*block(jnp.int32(0))))
    total = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), add)
    joined = jax.tree.map(lambda s: jnp.zeros((slots, *s.shape[1:]), s.dtype), join)

    def body(i: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        add, join = fn(*block(i))
        put = lambda out, x: jax.lax.dynamic_update_slice_in_dim(out, x, i * steps, axis=0)  # noqa: E731
        return trees.add(carry[0], add), jax.tree.map(put, carry[1], join)

    result: tuple[PyTree, PyTree] = jax.lax.fori_loop(0, -(-length // steps), body, (total, joined))
    return result


def map_over_time(fn: Callable[..., Array], arrays: tuple[Array, ...], length: Array) -> Array:
    """`over_time` where there is nothing to add."""
    joined: Array = over_time(lambda *block: ((), fn(*block)), arrays, length)[1]
    return joined


def sample_live(batch: Trajectories, key: Key, n: int) -> tuple[Array, Array]:
    """Time and trajectory indices of n live slots, spread evenly over all of them with a random offset each.

    The live slots of a trajectory are its first ones, so they can be counted off without a search. In a segment
    one that follows a truncated step is not live: it may be drawn, and as many of the last ones never are.
    """
    lengths = jnp.sum(batch.live, axis=0)
    ends = jnp.tri(lengths.shape[0], dtype=jnp.int32) @ lengths
    number = jnp.floor((jnp.arange(n) + jax.random.uniform(key, (n,))) / n * ends[-1]).astype(jnp.int32)
    number = jnp.minimum(number, ends[-1] - 1)  # rounding must not lead past the last one
    trajectory = jnp.sum(number[:, None] >= ends, axis=1)
    return number - (ends - lengths)[trajectory], trajectory
