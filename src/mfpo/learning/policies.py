"""Stochastic policies: a network that maps an observation to a distribution over actions.

A policy remembers its *raw* action: the index of a discrete action, or the Gaussian sample before squashing. The
squashing has no parameters, so its Jacobian cancels in every log-probability ratio and vanishes in every gradient;
working with raw actions avoids its numerical trouble near the bounds.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from mfpo.learning.nets import Layers, apply_mlp, init_mlp
from mfpo.types import Array, Box, Discrete, EnvSpec, Key, PyTree

SQUASHES = ("tanh", "clip")
FIRST_OUTPUT_SCALE = 0.01  # near-uniform or near-zero first actions


class Policy(NamedTuple):
    """Functions of one observation. theta is a vector, as in the paper; `unravel` gives it the shape of a network."""

    init: Callable[[Key], Array]  # key -> theta
    unravel: Callable[[Array], PyTree]  # theta -> network
    distribution: Callable[[PyTree, Array], PyTree]  # network, obs -> dist
    sample: Callable[[PyTree, Key], Array]  # dist, key -> raw action
    mode: Callable[[PyTree], Array]  # dist -> raw action
    log_prob: Callable[[PyTree, Array], Array]  # dist, raw action -> log density, up to a constant free of theta
    fisher: Callable[[PyTree, PyTree], PyTree]  # dist, tangent of dist -> Fisher information of dist times tangent
    action: Callable[[Array], Array]  # raw action -> what the environment takes


class GaussianNetwork(NamedTuple):
    """Mean network and a log standard deviation per action dimension, independent of the observation."""

    mean: Layers
    log_std: Array


class Gaussian(NamedTuple):
    """A diagonal Gaussian."""

    mean: Array
    log_std: Array


def make_policy(spec: EnvSpec, hidden: tuple[int, ...], activation: str, initial_std: float, squash: str) -> Policy:
    """The policy class that fits the environment's actions."""
    (n_obs,) = spec.observation_shape
    if isinstance(spec.action, Discrete):
        return _categorical(n_obs, spec.action.n, hidden, activation)
    return _gaussian(n_obs, spec.action, hidden, activation, initial_std, squash)


def flat(init: Callable[[Key], PyTree]) -> tuple[Callable[[Key], Array], Callable[[Array], PyTree]]:
    """The same initialisation as a vector, and the way back; one vector compiles faster than many arrays."""
    shapes = jax.eval_shape(init, jax.random.key(0))
    _, unravel = ravel_pytree(jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes))
    return lambda key: ravel_pytree(init(key))[0], unravel


def _categorical(n_obs: int, n_actions: int, hidden: tuple[int, ...], activation: str) -> Policy:
    def sample(logits: Array, key: Key) -> Array:
        """Inverse transform: one uniform number per action is all the randomness it needs."""
        cumulative = jnp.cumsum(jax.nn.softmax(logits))[:-1]
        return jnp.sum(jax.random.uniform(key) > cumulative).astype(jnp.int32)

    def fisher(logits: Array, tangent: Array) -> Array:
        p = jax.nn.softmax(logits)
        return p * (tangent - jnp.dot(p, tangent))

    init, unravel = flat(lambda key: init_mlp(key, (n_obs, *hidden, n_actions), FIRST_OUTPUT_SCALE))
    return Policy(
        init=init,
        unravel=unravel,
        distribution=lambda network, obs: apply_mlp(network, obs, activation),
        sample=sample,
        mode=lambda logits: jnp.argmax(logits).astype(jnp.int32),
        log_prob=lambda logits, raw: jnp.sum(jax.nn.log_softmax(logits) * jax.nn.one_hot(raw, n_actions)),
        fisher=fisher,
        action=lambda raw: raw,
    )


def _gaussian(
    n_obs: int, box: Box, hidden: tuple[int, ...], activation: str, initial_std: float, squash: str
) -> Policy:
    low, high = jnp.array(box.low), jnp.array(box.high)
    bound = jnp.tanh if squash == "tanh" else lambda raw: jnp.clip(raw, -1.0, 1.0)

    def network(key: Key) -> GaussianNetwork:
        mean = init_mlp(key, (n_obs, *hidden, len(box.low)), FIRST_OUTPUT_SCALE)
        return GaussianNetwork(mean, jnp.full(len(box.low), jnp.log(initial_std)))

    def log_prob(dist: Gaussian, raw: Array) -> Array:
        z = (raw - dist.mean) * jnp.exp(-dist.log_std)
        return -jnp.sum(0.5 * z**2 + dist.log_std)

    init, unravel = flat(network)
    return Policy(
        init=init,
        unravel=unravel,
        distribution=lambda net, obs: Gaussian(apply_mlp(net.mean, obs, activation), net.log_std),
        sample=lambda dist, key: dist.mean + jnp.exp(dist.log_std) * jax.random.normal(key, dist.mean.shape),
        mode=lambda dist: dist.mean,
        log_prob=log_prob,
        fisher=lambda dist, tangent: Gaussian(tangent.mean * jnp.exp(-2 * dist.log_std), 2 * tangent.log_std),
        action=lambda raw: low + (high - low) * 0.5 * (bound(raw) + 1.0),
    )
