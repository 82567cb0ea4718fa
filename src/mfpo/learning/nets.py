"""Multilayer perceptrons as a tuple of layers."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from mfpo.types import Array, Key

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"relu": jax.nn.relu, "tanh": jnp.tanh, "silu": jax.nn.silu}
WIDE = 256  # inputs


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
    lead, x = x.shape[:-1], x.reshape(-1, x.shape[-1])
    for layer in layers[:-1]:
        x = ACTIVATIONS[activation](product(x, layer.w) + layer.b)
    x = product(x, layers[-1].w) + layers[-1].b
    return x.reshape(*lead, x.shape[-1])


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def product(x: Array, w: Array, centred: bool = False) -> Array:
    """x @ w for the rows of x [n, inputs], with a gradient that is fast (`_change`).

    If `centred`, w learns only by what is particular to a row (Schraudolph 1998 on centring gradients). What the rows
    have in common is left to the biases.
    """
    return x @ w


@partial(product.defjvp, symbolic_zeros=True)
def _(centred: bool, primals: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    (x, w), (dx, dw) = primals, tangents
    change = jnp.zeros((len(x), w.shape[1]), x.dtype)
    if not isinstance(dx, SymbolicZero):
        change += dx @ w
    if not isinstance(dw, SymbolicZero):
        change += _change(x, dw) - (jnp.mean(x, axis=0) @ dw if centred else 0.0)
    return product(x, w, centred), change


def _change(x: Array, dw: Array) -> Array:
    """x @ dw, so that its transpose, which makes the gradient of w, is a product that XLA is good at on a CPU.

    That of a thousand rows with 64 inputs and six outputs takes a sixth of the time if its result is as wide as it can
    be, and with 256 of both a sixth less if x has been transposed before; of narrow rows that takes longer.
    """
    inputs, outputs = dw.shape
    keep: Any = jax.lax.optimization_barrier  # or XLA would do as it always does
    if outputs < inputs:
        return jnp.einsum("oi,ni->no", keep(dw.T), x)
    return jnp.einsum("in,io->no", keep(x.T) if inputs >= WIDE else x.T, dw)
