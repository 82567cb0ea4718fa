"""One agent's side of a round, compiled: `round.local` for a block of one, with the randomness of its number."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfpo.federation import round as federation_round
from mfpo.federation.faults import Faults, as_acted
from mfpo.federation.logs import StepLog
from mfpo.federation.sampling import make_sampler
from mfpo.rollout import Sampler
from mfpo.runs.building import make_algorithm, make_env
from mfpo.runs.settings import Settings
from mfpo.types import Algorithm, Env, PureEnv, PyTree


class Learner(NamedTuple):
    """What an agent can do. Its state is that of a block of one: every array has a leading axis of length 1."""

    algorithm: Algorithm
    start: Callable[[], PyTree]  # -> the agent before its first round
    round: Callable[[PyTree, PyTree, int], tuple[PyTree, PyTree, StepLog]]
    # agent, download, round -> agent, its upload (without the leading axis), log of the round's steps


def make_learner(settings: Settings, config: Any, number: int) -> Learner:
    """The learner of agent `number`, which counts from 0."""
    env = make_env(settings)
    algorithm = make_algorithm(settings, config, env)
    key, ids = jax.random.key(settings.seed), jnp.array([number])
    run = _program(algorithm, env, settings.faults, number)

    def round_(agent: PyTree, download: PyTree, round_number: int) -> tuple[PyTree, PyTree, StepLog]:
        steps = federation_round.count_steps(algorithm, round_number)
        agent, uploads, log = run(agent, ids, download, key, jnp.int32(round_number), steps)
        rows: Any = jax.tree.map(lambda x: np.asarray(x)[:steps], log)
        metrics = {name: values.astype(np.float32) for name, values in rows.metrics.items()}
        return agent, jax.tree.map(lambda x: x[0], uploads), rows._replace(metrics=metrics)

    def start() -> PyTree:
        return jax.jit(functools.partial(federation_round.join, algorithm))(ids, key)

    return Learner(algorithm, start, round_)


def _program(algorithm: Algorithm, env: Env, faults: Faults, number: int) -> Callable[..., Any]:
    """`local` with the copies, and the world, of this agent alone: in parts if the environment runs on the host."""
    if isinstance(env, PureEnv):
        return _compiled(algorithm, env._replace(worlds=env.worlds[number : number + 1]), faults)
    work = federation_round.compiled(federation_round.make_work(algorithm, faults))
    sample = make_sampler(env, as_acted(algorithm, env.spec, faults), 1, first=number)
    return functools.partial(federation_round.local, work, sample, federation_round.host_loop(f"agent {number}"))


@functools.lru_cache(maxsize=8)
def _compiled(algorithm: Algorithm, own: PureEnv, faults: Faults) -> Callable[..., Any]:
    """`local` as one program; agents of one world that share a process share it."""
    work = federation_round.make_work(algorithm, faults)
    loop = federation_round.compiled_loop(algorithm.plan.initial_steps + algorithm.plan.local_steps)
    sample = make_sampler(own, as_acted(algorithm, own.spec, faults), 1)
    # to this sampler an agent is the first of one, whatever its number: its keys say who it is
    first: Sampler = lambda actors, keys, ids, step: sample(actors, keys, jnp.zeros(1, int), step)  # noqa: E731
    return jax.jit(functools.partial(federation_round.local, work, first, loop))
