"""Scores of a policy on fresh episodes, from a stream of random numbers that no training step uses."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from mfpo.federation.round import Purpose, address
from mfpo.hosted import hosted_scores
from mfpo.rollout import greedy_act, pure_sampler
from mfpo.types import Algorithm, Array, Env, HostedEnv, Key, PureEnv, PyTree


def evaluate(
    algorithm: Algorithm, env: Env, params: PyTree, seed: int, episodes: int, greedy: bool = False, agent: int = 0
) -> np.ndarray:
    """The undiscounted return of each of `episodes` episodes; stochastic actions unless `greedy`.

    If the agents' worlds differ, in the world of one `agent`: the same episodes for all, as far as worlds allow.
    """
    key = address(jax.random.key(seed), Purpose.EVALUATE)
    if isinstance(env, HostedEnv):
        act = greedy_act(algorithm) if greedy else algorithm.act
        return hosted_scores(env, act, params, key, agent, episodes)
    block = jax.tree.map(lambda x: x[None], params)
    return np.asarray(_scores(algorithm, env, episodes, greedy)(block, key[None], jnp.array([agent])))


@functools.lru_cache(maxsize=8)
def _scores(algorithm: Algorithm, env: PureEnv, episodes: int, greedy: bool) -> Callable[[PyTree, Key, Array], Array]:
    act = greedy_act(algorithm) if greedy else algorithm.act
    sample = pure_sampler(env, act, episodes)
    return jax.jit(lambda block, keys, ids: sample(block, keys, ids).score[0])
