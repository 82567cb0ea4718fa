"""Running mean and variance, mergeable across agents (Chan et al. 1979).

Of frames they are kept pixel by pixel: most of a frame is always the same, and would be most of what a network makes of
it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mfpo.learning import trees
from mfpo.types import Array, EnvSpec, PyTree, Trajectories

CLIP = 10.0  # normalised observations are cut off here
UNIT = 127 / CLIP  # normalised frames stay bytes: so many of a byte's steps are a standard deviation
GREY = 128.0  # of bytes, the middle


class Statistics(NamedTuple):
    """Count, mean and sum of squared deviations."""

    n: Array
    mean: Array
    m2: Array


def empty(shape: tuple[int, ...]) -> Statistics:
    """Nothing seen yet: normalising with it changes nothing."""
    return Statistics(jnp.float32(0.0), jnp.zeros(shape), jnp.zeros(shape))


def start(spec: EnvSpec, wanted: bool) -> Statistics | tuple[()]:
    """Empty statistics of an environment's observations, of one frame if they are stacks; () if they are not wanted."""
    return empty(spec.observation_shape[1:] if spec.stack else spec.observation_shape) if wanted else ()


def observe(seen: Statistics | tuple[()], batch: Trajectories) -> Statistics | tuple[()]:
    """`seen` and what is in the batch; () stays (). Frames from before the first step were seen before."""
    if not seen:
        return ()
    obs = batch.obs[batch.obs.shape[0] - batch.live.shape[0] :]
    return merge(seen, (gather_frames if obs.dtype == jnp.uint8 else gather)(obs, batch.live))


def gather(x: Array, present: Array) -> Statistics:
    """The statistics of x [H, D, ...] over the slots that are present [H, D]."""
    weight = present.reshape(present.shape + (1,) * (x.ndim - present.ndim)).astype(x.dtype)
    n = jnp.sum(weight)
    mean = jnp.sum(x * weight, axis=(0, 1)) / jnp.maximum(n, 1.0)
    return Statistics(n, mean, jnp.sum(((x - mean) * weight) ** 2, axis=(0, 1)))


def gather_frames(x: Array, present: Array) -> Statistics:
    """The same of frames of bytes [H, D, height, width], read once, one after the other: a fifth of the time.

    They are compared with one of them, so that pixels that never change have no deviation at all. Sums are of whole
    numbers, and exact although they wrap around at 2**32, unless the squares about the mean come to more: that takes
    264,000 frames (1.9 GB), half of them black and half white.
    """
    one_of_them = x[0, 0].astype(jnp.int16)

    def add(sums: tuple[Array, Array], row: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        frame, there = row
        apart = jnp.where(there, frame - one_of_them, 0)
        return (sums[0] + apart, sums[1] + (apart**2).astype(jnp.uint16)), None  # 255² fits into 16 bits

    nothing = jnp.zeros(one_of_them.shape, jnp.int32)
    rows = x.reshape(-1, *x.shape[2:]), present.reshape(-1)
    (total, squares), _ = jax.lax.scan(add, (nothing, nothing), rows)
    n = jnp.sum(present, dtype=jnp.int32)
    some = jnp.maximum(n, 1)
    near = jnp.round(total / some).astype(jnp.int32)
    rest = total - n * near  # the sum of what is apart from `near`; next, that of its squares
    squares = (squares - near * (total + rest)).astype(jnp.uint32)
    return Statistics(n.astype(jnp.float32), one_of_them + near + rest / some, squares - rest * (rest / some))


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
    return jnp.clip((x - s.mean) / deviation(s), -CLIP, CLIP) if s else x


def normalise_frames(s: Statistics | tuple[()], x: Array) -> Array:
    """Frames [..., height, width] of bytes as signed bytes, UNIT of which are a standard deviation.

    A frame of zeros stands for none, and becomes what says least: the mean. Before anything was seen, grey is the mean.
    """
    mean, scale = jnp.float32(GREY), jnp.float32(1.0)
    if s:
        mean, scale = jnp.where(s.n > 0, s.mean, mean), jnp.where(s.n > 0, UNIT / deviation(s), scale)
    # without the barrier XLA takes the root again for every frame
    mean, scale = jax.lax.optimization_barrier((mean, scale))  # type: ignore[no-untyped-call]
    standard = _round_to_byte(jnp.clip((x - mean) * scale, -127, 127))
    return jnp.where(jnp.max(x, axis=(-2, -1), keepdims=True) > 0, standard, 0)


def _round_to_byte(x: Array) -> Array:
    """Numbers between -127 and 127 as `jnp.round` rounds them: the sum with so large a number has no bits for less.

    A stack of frames is normalised and arranged in 14 µs, where rounding and converting take 19.
    """
    return jax.lax.bitcast_convert_type(x + jnp.float32(1.5 * 2**23), jnp.int32).astype(jnp.int8)
