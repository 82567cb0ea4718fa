"""Sampling from pure environments: (environment, act) -> trajectories, as part of a compiled program.

All episodes of all agents on a device advance together, and the loop ends with the longest of them. Environments that
run outside the program are sampled by `hosted`.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mfpo.random import inline
from mfpo.types import TIME_BLOCK, Algorithm, Array, Key, PureEnv, PyTree, Trajectories

Act = Callable[..., tuple[Array, Array]]  # params, obs, key -> action, aux
Sampler = Callable[[PyTree, Key, Array, Array], Trajectories]
# actors[n], keys[n], ids[n] of the agents, step of the round -> trajectories[n]


class _Record(NamedTuple):
    obs: Array
    action: Array
    reward: Array
    live: Array
    terminated: Array


def pure_sampler(env: PureEnv, act: Act, episodes: int) -> Callable[[PyTree, Key, Array], Trajectories]:
    """actors[n], keys[n], ids[n] -> trajectories[n]: one loop over time around the batch of all agents' episodes."""
    horizon = env.spec.horizon
    slots = -(-horizon // TIME_BLOCK) * TIME_BLOCK

    def home(world: PyTree) -> PureEnv:
        return env.at(world) if world and env.at else env

    def one_step(world: PyTree, actor: PyTree, state: PyTree, key: Key, h: Array) -> tuple[PyTree, tuple[Array, ...]]:
        obs = home(world).observe(state)
        action, aux = act(actor, obs, jax.random.fold_in(key, 2 * h + 1))
        state, reward, terminated = home(world).step(state, action, jax.random.fold_in(key, 2 * h + 2))
        return state, (obs, aux, reward, terminated)

    def sample(actors: PyTree, keys: Key, ids: Array) -> Trajectories:
        worlds = jax.tree.map(lambda *x: jnp.asarray(x)[ids], *env.worlds) if env.worlds else ()
        agents_step = jax.vmap(jax.vmap(one_step, (None, None, 0, 0, None)), (0, 0, 0, 0, None))
        each = partial(agents_step, worlds)  # agents, then their episodes
        episode_keys = inline(jax.vmap(lambda k: jax.random.split(k, episodes))(keys))
        begin: Callable[..., PyTree] = jax.vmap(
            jax.vmap(lambda world, key: home(world).reset(jax.random.fold_in(key, 0)), (None, 0))
        )
        state = begin(worlds, episode_keys)
        running = jnp.ones(episode_keys.shape, bool)
        shapes = jax.eval_shape(lambda: each(actors, state, episode_keys, jnp.int32(0))[1])
        blank = [jnp.zeros((s.shape[0], slots, *s.shape[1:]), s.dtype) for s in shapes]
        obs, aux, reward, flag = blank
        record = _Record(obs, aux, reward, live=flag, terminated=flag)

        def goes_on(carry: tuple[Array, PyTree, Array, _Record]) -> Array:
            h, _, running, _ = carry
            return (h < horizon) & jnp.any(running)

        def advance(carry: tuple[Array, PyTree, Array, _Record]) -> tuple[Array, PyTree, Array, _Record]:
            h, state, running, record = carry
            after, (obs, aux, reward, terminated) = each(actors, state, episode_keys, h)
            row = _Record(obs, aux, jnp.where(running, reward, 0.0), running, running & terminated)
            record = jax.tree.map(lambda buffer, x: buffer.at[:, h].set(x), record, row)
            state = jax.tree.map(lambda new, old: jnp.where(_fit(running, new), new, old), after, state)
            return h + 1, state, running & ~terminated, record

        _, state, _, record = jax.lax.while_loop(goes_on, advance, (jnp.int32(0), state, running, record))
        last_slot = jnp.arange(slots)[:, None] == horizon - 1
        truncated = record.live & ~record.terminated & last_slot
        last_obs = jax.vmap(jax.vmap(lambda world, s: home(world).observe(s), (None, 0)))(worlds, state)
        length = jnp.sum(jnp.any(record.live, axis=2), axis=1)
        return Trajectories(*record, truncated, last_obs, length, score=jnp.sum(record.reward, axis=1))

    return sample


def _fit(mask: Array, like: Array) -> Array:
    return mask.reshape(mask.shape + (1,) * (like.ndim - mask.ndim))


def greedy_act(algorithm: Algorithm) -> Act:
    """`act` without randomness, for evaluation."""
    return lambda params, obs, key: (algorithm.greedy(params, obs),) * 2
