"""Scores of a policy on fresh episodes, from a stream of random numbers that no training step uses."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from mfpo.federation.round import Purpose, address
from mfpo.rollout import greedy_act, pure_sampler
from mfpo.types import Algorithm, Array, Key, PureEnv, PyTree


def evaluate(
    algorithm: Algorithm, env: PureEnv, params: PyTree, seed: int, episodes: int, greedy: bool = False
) -> np.ndarray:
    """The undiscounted return of each of `episodes` episodes; stochastic actions unless `greedy`."""
    keys = address(jax.random.key(seed), Purpose.EVALUATE)[None]
    block = jax.tree.map(lambda x: x[None], params)
    return np.asarray(_scores(algorithm, env, episodes, greedy)(block, keys))


@functools.lru_cache(maxsize=8)
def _scores(algorithm: Algorithm, env: PureEnv, episodes: int, greedy: bool) -> Callable[[PyTree, Key], Array]:
    act = greedy_act(algorithm) if greedy else algorithm.act
    sample = pure_sampler(env, act, episodes)
    return jax.jit(lambda block, keys: jnp.sum(sample(block, keys).reward, axis=1)[0])
