"""Policies that look at frames: a convolutional trunk in front of a policy on vectors.

The network is that of Mnih et al. 2013: 16 filters of 8×8 at every fourth pixel, 32 of 4×4 at every second, 256 units.
Its output is what the policy's own layers and the value function see, so that both share the trunk.

Three things keep what all states have in common from drowning what tells them apart, and without them nothing was
learnt. What the units receive is standardised (layer normalisation), or the average of networks that have moved apart
says less than any of them. What they say is standardised again, as rectified units have a mean. And weights learn only
by what is particular to an image (`nets.product`, centred): else what all have in common is most of every gradient, and
moves what the network makes of all states at once, which is mostly noise. In a game of catch (docs/presets.md) this
made it possible to learn with a stepsize that else ends with the same action in all states.

Convolutions are written as matrix products: a filter of 2s×2s pixels at every s-th is one of 2×2 blocks of s×s pixels,
which is one product and four shifted sums. On the CPU that is faster than XLA's convolution with its gradient (2,000
and more against 720 images per core-second, in blocks of forty), and does not collapse inside a loop as that does (to
180). All images of a call are the rows of one product: under `vmap` the gradient takes a third longer. The blocks of
the first layer are cut out once (`arrange`), not in every pass.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mfpo.learning.nets import Layer, product
from mfpo.learning.policies import Policy, flat
from mfpo.types import Array, Key, PyTree, Trajectories

UNITS = 256


class Trunk(NamedTuple):
    """w of a convolution is [2, 2, s * s * channels, filters]; of the first one, [2, 2, channels * s * s, filters]."""

    first: Layer
    second: Layer
    dense: Layer


class Network(NamedTuple):
    """What looks, and what decides."""

    trunk: Trunk
    head: PyTree


def on_frames(head: Policy, shape: tuple[int, ...]) -> Policy:
    """The policy `head`, which is one on vectors of UNITS numbers, for stacks of frames of this shape."""

    def network(key: Key) -> Network:
        key_trunk, key_head = jax.random.split(key)
        return Network(init_trunk(key_trunk, shape), head.unravel(head.init(key_head)))

    init, unravel = flat(network)
    return head._replace(
        init=init,
        unravel=unravel,
        features=lambda net, obs: see(net.trunk, obs),
        distribution=lambda net, features: head.distribution(net.head, features),
    )


def init_trunk(key: Key, shape: tuple[int, ...]) -> Trunk:
    """Normal weights of variance 2 / fan-in, for rectified units."""
    frames, height, width = shape
    sizes = [(2, 2, 16 * frames, 16), (2, 2, 4 * 16, 32), (_after(height) * _after(width) * 32, UNITS)]
    layers = []
    for key_, size in zip(jax.random.split(key, 3), sizes, strict=True):
        fan_in = 1
        for n in size[:-1]:
            fan_in *= n
        layers.append(Layer(jax.random.normal(key_, size) * (2 / fan_in) ** 0.5, jnp.zeros(size[-1])))
    return Trunk(*layers)


def _after(pixels: int) -> int:
    """How many places along a side are left after both convolutions."""
    return (pixels // 4 - 1) // 2 - 1


def arrange(obs: Array) -> Array:
    """Stacks [..., stack, height, width] of bytes as [..., height / 4, width / 4, stack * 16]; what is left is cut off.

    The four bytes of a block's row are moved as one number.
    """
    *lead, stack, height, width = obs.shape
    height, width = height // 4, width // 4
    x = obs[..., : height * 4, : width * 4].reshape(-1, stack, height, 4, width, 4)
    x = jax.lax.bitcast_convert_type(x, jnp.uint32).transpose(0, 2, 4, 1, 3)
    return jax.lax.bitcast_convert_type(x, obs.dtype).reshape(*lead, height, width, stack * 16)


def see(trunk: Trunk, obs: Array) -> Array:
    """UNITS numbers for each stack of frames that `arrange` has made ready."""
    x = _convolve(_contrast(obs.reshape(-1, *obs.shape[-3:]).astype(jnp.float32)), trunk.first)
    x = _convolve(_blocks(x, 2), trunk.second)
    x = _standard(jax.nn.relu(_standard(product(x.reshape(len(x), -1), trunk.dense.w, True) + trunk.dense.b)))
    return x.reshape(*obs.shape[:-3], -1)


def _standard(x: Array) -> Array:
    """Each row with mean 0 and deviation 1."""
    x -= jnp.mean(x, axis=-1, keepdims=True)
    return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def _contrast(x: Array) -> Array:
    """Each image with mean 0 and deviation 1, an empty one with 0.

    A bright background is the same in all images, yet would dominate what the first layer says of every one of them.
    """
    x -= jnp.mean(x, axis=(1, 2, 3), keepdims=True)
    return x / (jnp.sqrt(jnp.mean(x**2, axis=(1, 2, 3), keepdims=True)) + 1)  # of 255 shades of grey, one more or less


def _blocks(x: Array, s: int) -> Array:
    """[n, height, width, channels] -> [n, height / s, width / s, s * s * channels]; a rest at the edge is cut off."""
    n, height, width, channels = len(x), x.shape[1] // s, x.shape[2] // s, x.shape[3]
    x = x[:, : height * s, : width * s].reshape(n, height, s, width, s, channels)
    return jnp.swapaxes(x, 2, 3).reshape(n, height, width, s * s * channels)


def _convolve(x: Array, layer: Layer) -> Array:
    """A convolution with 2×2 blocks, and rectified units."""
    n, height, width, channels = x.shape
    filters = layer.w.shape[-1]
    z = product(x.reshape(-1, channels), jnp.moveaxis(layer.w, 2, 0).reshape(channels, 4 * filters), True)
    z = z.reshape(n, height, width, 4, filters)
    z = z[:, :-1, :-1, 0] + z[:, :-1, 1:, 1] + z[:, 1:, :-1, 2] + z[:, 1:, 1:, 3]
    return jax.nn.relu(z + layer.b)


def lagged(batch: Trajectories, stack: int) -> list[Array]:
    """The `stack` frames of every observation, oldest first, each [H, D, ...], of a batch that holds every frame once.

    Zeros stand before an episode.
    """
    slots = batch.live.shape[0]
    begins = jnp.concatenate([jnp.zeros_like(batch.live[:1]), (batch.terminated | ~batch.live)[:-1]])
    frames, begun = [], jnp.zeros_like(begins)
    for lag in range(stack):
        frame = jax.lax.slice_in_dim(batch.obs, stack - 1 - lag, stack - 1 - lag + slots)
        frames.append(jnp.where(begun.reshape(*begun.shape, *[1] * (frame.ndim - 2)), 0, frame))
        begun = begun | (jnp.concatenate([jnp.zeros_like(begins[:lag]), begins[: slots - lag]]) if lag else begins)
    return frames[::-1]
