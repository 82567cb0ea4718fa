"""Agents that lie, vanish or come late: faults around any algorithm, drawn anew in every round.

Liars are the first `byzantine` agents. What they do:

    zero              send what they were told, unchanged
    random-noise      send noise, `strength` times as long as what they learned
    sign-flip         send the opposite of what they learned, `strength` times as long
    offset            all send the same vector on top of what they were told, `strength` times as long
    nan, inf          send numbers that are none
    stale             send what they sent in the round before
    reward-flip       learn from rewards with the opposite sign
    reward-shuffle    learn from their rewards in a random order
    random-action     act at random, and learn as if they had acted as they meant to

What they learned is the difference to an agent that was told the same and learned nothing. Every array of a message is
corrupted in its own scale, but for whole numbers, which stay.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfpo.errors import ConfigError
from mfpo.types import Algorithm, Array, Box, Discrete, EnvSpec, Key, PyTree, Trajectories

OF_UPLOADS = ("zero", "random-noise", "sign-flip", "offset", "nan", "inf", "stale")
OF_REWARDS = ("reward-flip", "reward-shuffle")
ATTACKS = (*OF_UPLOADS, *OF_REWARDS, "random-action")


class Faults(NamedTuple):
    """What goes wrong in a federation; the defaults: nothing."""

    byzantine: int = 0
    attack: str = "sign-flip"
    strength: float = 3.0
    participation: float = 1.0  # share of the agents that are asked in a round
    dropout: float = 0.0  # chance that an agent misses a round: it neither hears nor works
    stragglers: float = 0.0  # chance that an agent does its work, and answers too late


NONE = Faults()


def check(faults: Faults, agents: int) -> None:
    """Raise a `ConfigError` where nobody would be left, or nobody honest."""
    if faults.byzantine > agents:
        raise ConfigError(f"--byzantine is {faults.byzantine}, but there are only {agents} agents; give at most that.")
    if asked(faults, agents) < 1:
        raise ConfigError(
            f"--participation {faults.participation:g} of {agents} agents selects nobody; give at least {1 / agents:g}."
        )


def asked(faults: Faults, agents: int) -> int:
    """How many agents are asked in a round.

    >>> asked(Faults(participation=0.5), 5), asked(Faults(participation=0.05), 10)
    (2, 0)
    """
    return int(faults.participation * agents + 1e-6)


class Attendance(NamedTuple):
    """Who takes part in a round [N]."""

    works: Array
    answers: Array  # in time


def attendance(faults: Faults, key: Key, agents: int) -> Attendance:
    """Drawn for a round. A round takes at least one answer: if all fail, the first that was asked does not."""
    key_asked, key_drop, key_late = jax.random.split(key, 3)
    order = jax.random.permutation(key_asked, agents)
    chosen = jnp.zeros(agents, bool).at[order].set(jnp.arange(agents) < asked(faults, agents))
    works = chosen & (jax.random.uniform(key_drop, (agents,)) >= faults.dropout)
    answers = works & (jax.random.uniform(key_late, (agents,)) >= faults.stragglers)
    saved = ~jnp.any(answers) & (jnp.arange(agents) == order[0])
    return Attendance(works | saved, answers | saved)


def unreliable(faults: Faults) -> bool:
    """Whether an agent can be absent at all."""
    return faults.participation < 1 or faults.dropout > 0 or faults.stragglers > 0


def as_acted(algorithm: Algorithm, spec: EnvSpec, faults: Faults) -> Algorithm:
    """The algorithm to sample with. If agents may act at random, params of `act` are (own, whether this one does)."""
    if not faults.byzantine or faults.attack != "random-action":
        return algorithm

    def act(params: tuple[PyTree, Array], obs: Array, key: Key) -> tuple[Array, Array]:
        own, at_random = params
        key_own, key_random = jax.random.split(key)
        action, aux = algorithm.act(own, obs, key_own)
        return jnp.where(at_random, random_action(spec, key_random), action), aux

    ready = algorithm.ready
    return algorithm._replace(act=act, ready=ready and (lambda params, frame: ready(params[0], frame)))


def random_action(spec: EnvSpec, key: Key) -> Array:
    """Any action is as likely as any other; where a dimension has no bounds, a standard normal number."""
    if isinstance(spec.action, Box):
        low, high = jnp.array(spec.action.low), jnp.array(spec.action.high)
        bounded = jnp.isfinite(low) & jnp.isfinite(high)
        inside = jax.random.uniform(
            key, low.shape, minval=jnp.where(bounded, low, 0), maxval=jnp.where(bounded, high, 1)
        )
        return jnp.where(bounded, inside, jnp.clip(jax.random.normal(key, low.shape), low, high))
    n = spec.action.n if isinstance(spec.action, Discrete) else np.array(spec.action.n)
    return jax.random.randint(key, np.shape(n), 0, n)


def spoil(attack: str, batch: Trajectories, key: Key) -> Trajectories:
    """What a liar learns from, of what it saw."""
    if attack == "reward-flip":
        return batch._replace(reward=-batch.reward)
    live, reward = batch.live.reshape(-1), batch.reward.reshape(-1)
    shuffled = jnp.argsort(jnp.where(live, jax.random.uniform(key, live.shape), jnp.inf))
    places = jnp.argsort(~live, stable=True)
    return batch._replace(reward=jnp.zeros_like(reward).at[places].set(reward[shuffled]).reshape(batch.reward.shape))


def _real(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


Lie = Callable[[PyTree, PyTree, PyTree, Key, Key], PyTree]
# upload, the one without having learned, the one of the round before, own key, a key that all liars share -> upload


def make_lie(attack: str, strength: float) -> Lie:
    """What a liar sends instead of its upload."""

    def lie(upload: PyTree, untaught: PyTree, previous: PyTree, own: Key, shared: Key) -> PyTree:
        leaves, structure = jax.tree.flatten(upload)
        others = zip(leaves, jax.tree.leaves(untaught), jax.tree.leaves(previous), strict=True)
        sent = [
            of(x, y, z, jax.random.fold_in(own, i), jax.random.fold_in(shared, i)) if _real(x) else x
            for i, (x, y, z) in enumerate(others)
        ]
        return jax.tree.unflatten(structure, sent)

    def of(x: Array, untaught: Array, previous: Array, own: Key, shared: Key) -> Array:
        length = jnp.linalg.norm((x - untaught).reshape(-1))

        def noise(key: Key) -> Array:
            drawn: Array = jax.random.normal(key, x.shape)
            longer: Array = untaught + strength * length * drawn / jnp.maximum(
                jnp.linalg.norm(drawn.reshape(-1)), 1e-12
            )
            return longer

        match attack:
            case "zero":
                return untaught
            case "random-noise":
                return noise(own)
            case "offset":
                return noise(shared)
            case "sign-flip":
                return untaught - strength * (x - untaught)
            case "stale":
                return previous
            case _:
                return jnp.full_like(x, jnp.nan if attack == "nan" else jnp.inf)

    return lie
