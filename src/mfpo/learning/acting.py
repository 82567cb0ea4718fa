"""A policy in an environment: what it sees of observations, and how it acts.

Observations are normalised with shared statistics. Frames then go through a trunk, whose output the value function sees
as well.
"""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp

from mfpo.learning.images import UNITS, arrange, lagged, on_frames
from mfpo.learning.normalisation import normalise, normalise_frames
from mfpo.learning.policies import Policy, distributions, look, make_policy
from mfpo.learning.timeline import map_over_time
from mfpo.types import Array, EnvSpec, Key, PyTree, Trajectories


class Actor(NamedTuple):
    """What it takes to act."""

    network: PyTree
    obs: PyTree  # Statistics


def policy_for(
    spec: EnvSpec,
    hidden: tuple[int, ...],
    activation: str,
    initial_std: float,
    squash: str,
    least_std: float,
    state_std: bool = False,
) -> Policy:
    """The policy for an environment; see `make_policy`."""
    options = (hidden, activation, initial_std, squash, least_std, state_std)
    if not spec.stack:
        return make_policy(spec, *options)
    return on_frames(make_policy(spec._replace(observation_shape=(UNITS,)), *options), spec.observation_shape)


def act(policy: Policy, actor: Actor, obs: Array, key: Key) -> tuple[Array, Array]:
    """An action drawn from the policy, and the sample it was made from."""
    raw = policy.sample(_distribution(policy, actor, obs), key)
    return policy.action(raw), raw


def greedy(policy: Policy, actor: Actor, obs: Array) -> Array:
    """The most likely action."""
    return policy.action(policy.mode(_distribution(policy, actor, obs)))


def _distribution(policy: Policy, actor: Actor, obs: Array) -> PyTree:
    return distributions(policy, actor.network, perceive(actor.obs, obs))


def perceive(statistics: PyTree, obs: Array) -> Array:
    """Observations as networks see them: in standard units, and frames, which are bytes, arranged for a trunk.

    Frames that are `ready` stay as they are.
    """
    if obs.dtype == jnp.int8:
        return obs
    return arrange(normalise_frames(statistics, obs)) if obs.dtype == jnp.uint8 else normalise(statistics, obs)


def ready(actor: Any, frame: Array) -> Array:
    """What an actor with statistics `obs` sees of one frame; joined along the last axis, frames are an observation."""
    return perceive(actor.obs, frame[None])


def seen(spec: EnvSpec, statistics: PyTree, batch: Trajectories) -> Array:
    """The observations of a batch [H, D, ...] as the policy sees them; of frames, each is made ready once."""
    if not spec.stack:
        return perceive(statistics, batch.obs)
    frames = batch._replace(obs=perceive(statistics, batch.obs[:, :, None]))
    return jnp.concatenate(lagged(frames, spec.stack), axis=-1)


def features(policy: Policy, theta: PyTree, statistics: PyTree, obs: Array, batch: Trajectories) -> tuple[Array, Array]:
    """What the value function sees, of the observations a policy saw and of the last ones."""
    last_obs = perceive(statistics, batch.last_obs)
    if policy.features is None:
        return obs, last_obs
    see = partial(look, policy, policy.unravel(theta))
    return map_over_time(see, (obs,), batch.length), see(last_obs)


def feature_count(spec: EnvSpec) -> int:
    """How many numbers a network sees: those of an observation, or what a trunk makes of frames."""
    return UNITS if spec.stack else spec.observation_shape[0]
