"""Stochastic policies: a network that maps an observation to a distribution over actions.

A policy remembers its *raw* action: the index of a discrete action, or the Gaussian sample before squashing. The
squashing has no parameters, so its Jacobian cancels in every log-probability ratio and vanishes in every gradient;
working with raw actions avoids its numerical trouble near the bounds. Several discrete actions at once are independent
categorical variables, a row of logits each.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from mfpo.learning.nets import Layers, apply_mlp, init_mlp
from mfpo.types import Array, Box, Discrete, EnvSpec, Key, MultiDiscrete, PyTree

SQUASHES = ("tanh", "clip")
FIRST_OUTPUT_SCALE = 0.01  # near-uniform or near-zero first actions
NEVER = -1e9  # the logit of an action that does not exist; finite, so that zero times it is zero


class Policy(NamedTuple):
    """Functions of one observation. theta is a vector, as in the paper; `unravel` gives it the shape of a network.

    What the distribution is made of, and a value function sees as well, are the features of an observation: itself,
    if there is nothing to make them.
    """

    init: Callable[[Key], Array]  # key -> theta
    unravel: Callable[[Array], PyTree]  # theta -> network
    distribution: Callable[[PyTree, Array], PyTree]  # network, features [..., n] -> dist [..., ...]
    sample: Callable[[PyTree, Key], Array]  # dist, key -> raw action
    mode: Callable[[PyTree], Array]  # dist -> raw action
    log_prob: Callable[[PyTree, Array], Array]  # dist, raw action -> log density, up to a constant free of theta
    fisher: Callable[[PyTree, PyTree], PyTree]  # dist, tangent of dist -> Fisher information of dist times tangent
    entropy: Callable[[PyTree], Array]  # dist -> its entropy, up to a constant
    action: Callable[[Array], Array]  # raw action -> what the environment takes
    features: Callable[[PyTree, Array], Array] | None = None  # network, obs [..., *shape] -> features [..., n]


class GaussianNetwork(NamedTuple):
    """Mean network and a log standard deviation per action dimension.

    If the latter depends on the observation, it is a sum: the network has a second row of outputs, which begin near
    zero.
    """

    mean: Layers
    log_std: Array


class Gaussian(NamedTuple):
    """A diagonal Gaussian."""

    mean: Array
    log_std: Array


def look(policy: Policy, network: PyTree, obs: Array) -> Array:
    """The features [..., n] of observations [..., *shape]."""
    return obs if policy.features is None else policy.features(network, obs)


def distributions(policy: Policy, network: PyTree, obs: Array) -> PyTree:
    """pi(.|s) for observations [..., *shape]."""
    return policy.distribution(network, look(policy, network, obs))


def make_policy(
    spec: EnvSpec,
    hidden: tuple[int, ...],
    activation: str,
    initial_std: float,
    squash: str,
    least_std: float = 0.0,
    state_std: bool = False,
) -> Policy:
    """The policy class that fits the environment's actions; the last four are for continuous ones."""
    (n_obs,) = spec.observation_shape
    if isinstance(spec.action, Discrete):
        return _categorical(n_obs, spec.action.n, hidden, activation)
    if isinstance(spec.action, MultiDiscrete):
        return _categoricals(n_obs, spec.action.n, hidden, activation)
    return _gaussian(n_obs, spec.action, hidden, activation, initial_std, squash, least_std, state_std)


def flat(init: Callable[[Key], PyTree]) -> tuple[Callable[[Key], Array], Callable[[Array], PyTree]]:
    """The same initialisation as a vector, and the way back; one vector compiles faster than many arrays."""
    shapes = jax.eval_shape(init, jax.random.key(0))
    _, unravel = ravel_pytree(jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes))
    return lambda key: ravel_pytree(init(key))[0], unravel


def _categorical(n_obs: int, n_actions: int, hidden: tuple[int, ...], activation: str) -> Policy:
    init, unravel = flat(lambda key: init_mlp(key, (n_obs, *hidden, n_actions), FIRST_OUTPUT_SCALE))
    return Policy(
        init=init,
        unravel=unravel,
        distribution=lambda network, obs: apply_mlp(network, obs, activation),
        sample=lambda logits, key: _draw(logits, jax.random.uniform(key)),
        mode=lambda logits: jnp.argmax(logits).astype(jnp.int32),
        log_prob=_log_probability,
        fisher=_categorical_fisher,
        entropy=lambda logits: -jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)),
        action=lambda raw: raw,
    )


def _categoricals(n_obs: int, n: tuple[int, ...], hidden: tuple[int, ...], activation: str) -> Policy:
    """The rows of logits are as long as the longest; what the others do not use is `NEVER`."""
    sizes = np.array(n)
    column = np.arange(sizes.max())
    exists = column < sizes[:, None]
    place = np.where(exists, (np.cumsum(sizes) - sizes)[:, None] + column, 0)  # of a logit in the network's output

    def sample(logits: Array, key: Key) -> Array:
        index = jax.vmap(_draw)(logits, jax.random.uniform(key, sizes.shape))
        return jnp.minimum(index, sizes - 1)  # probabilities may add up to a little less than one

    one = _categorical(n_obs, int(sizes.sum()), hidden, activation)
    return one._replace(
        distribution=lambda network, obs: jnp.where(exists, one.distribution(network, obs)[..., place], NEVER),
        sample=sample,
        mode=jax.vmap(one.mode),
        log_prob=lambda logits, raw: jnp.sum(jax.vmap(one.log_prob)(logits, raw)),
        fisher=jax.vmap(one.fisher),
        entropy=lambda logits: jnp.sum(jax.vmap(one.entropy)(logits)),
    )


def _draw(logits: Array, uniform: Array) -> Array:
    """Inverse transform: one uniform number per action is all the randomness it needs."""
    cumulative = jnp.cumsum(jax.nn.softmax(logits))[:-1]
    return jnp.sum(uniform > cumulative).astype(jnp.int32)


def _log_probability(logits: Array, raw: Array) -> Array:
    return jnp.sum(jax.nn.log_softmax(logits) * jax.nn.one_hot(raw, logits.shape[-1]))


def _categorical_fisher(logits: Array, tangent: Array) -> Array:
    p = jax.nn.softmax(logits)
    return p * (tangent - jnp.dot(p, tangent))


def _gaussian(
    n_obs: int,
    box: Box,
    hidden: tuple[int, ...],
    activation: str,
    initial_std: float,
    squash: str,
    least_std: float,
    state_std: bool,
) -> Policy:
    n = len(box.low)

    def network(key: Key) -> GaussianNetwork:
        outputs = init_mlp(key, (n_obs, *hidden, 2 * n if state_std else n), FIRST_OUTPUT_SCALE)
        return GaussianNetwork(outputs, jnp.full(n, jnp.log(initial_std)))

    def distribution(net: GaussianNetwork, obs: Array) -> Gaussian:
        """With a least std the variance is that of two independent draws; smooth, so that it can grow again."""
        outputs = apply_mlp(net.mean, obs, activation)
        mean = outputs[..., :n]
        log_std = net.log_std + outputs[..., n:] if state_std else jnp.broadcast_to(net.log_std, mean.shape)
        log_std = jnp.logaddexp(2 * log_std, 2 * math.log(least_std)) / 2 if least_std else log_std
        return Gaussian(mean, log_std)

    def log_prob(dist: Gaussian, raw: Array) -> Array:
        z = (raw - dist.mean) * jnp.exp(-dist.log_std)
        return -jnp.sum(0.5 * z**2 + dist.log_std)

    init, unravel = flat(network)
    return Policy(
        init=init,
        unravel=unravel,
        distribution=distribution,
        sample=lambda dist, key: dist.mean + jnp.exp(dist.log_std) * jax.random.normal(key, dist.mean.shape),
        mode=lambda dist: dist.mean,
        log_prob=log_prob,
        fisher=lambda dist, tangent: Gaussian(tangent.mean * jnp.exp(-2 * dist.log_std), 2 * tangent.log_std),
        entropy=lambda dist: jnp.sum(dist.log_std),
        action=_squash(box, squash),
    )


def _squash(box: Box, squash: str) -> Callable[[Array], Array]:
    """raw -> action: `squash` between two bounds, softplus above or below a single one, nothing without any."""
    below, above = np.isfinite(box.low), np.isfinite(box.high)
    low, high = jnp.where(below, jnp.array(box.low), -1.0), jnp.where(above, jnp.array(box.high), 1.0)
    bound = jnp.tanh if squash == "tanh" else lambda raw: jnp.clip(raw, -1.0, 1.0)

    def between(raw: Array) -> Array:
        return low + (high - low) * 0.5 * (bound(raw) + 1.0)

    def anywhere(raw: Array) -> Array:
        half = jnp.where(below, low + jax.nn.softplus(raw), high - jax.nn.softplus(-raw))
        return jnp.where(below & above, between(raw), jnp.where(below | above, half, raw))

    return between if np.all(below & above) else anywhere
