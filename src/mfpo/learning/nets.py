"""Multilayer perceptrons as a tuple of layers."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mfpo.types import Array, Key

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"relu": jax.nn.relu, "tanh": jnp.tanh, "silu": jax.nn.silu}


class Layer(NamedTuple):
    """y = x @ w + b."""

    w: Array
    b: Array


Layers = tuple[Layer, ...]


def init_mlp(key: Key, sizes: tuple[int, ...], last_scale: float) -> Layers:
    """Normal weights of variance 1 / fan-in, zero biases; the last layer is scaled so that first outputs are small."""
    keys = jax.random.split(key, len(sizes) - 1)
    layers = []
    for i, (k, fan_in, fan_out) in enumerate(zip(keys, sizes[:-1], sizes[1:], strict=True)):
        gain = last_scale if i == len(sizes) - 2 else 1.0
        w = jax.random.normal(k, (fan_in, fan_out)) * (gain / fan_in**0.5)
        layers.append(Layer(w, jnp.zeros(fan_out)))
    return tuple(layers)


def apply_mlp(layers: Layers, x: Array, activation: str) -> Array:
    """The network's output for one input vector (or a batch of them in the leading axes)."""
    for layer in layers[:-1]:
        x = ACTIVATIONS[activation](x @ layer.w + layer.b)
    return x @ layers[-1].w + layers[-1].b
