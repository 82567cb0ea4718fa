"""Which sampler an environment needs."""

from collections.abc import Sequence
from typing import Any

from mfpo.errors import ConfigError
from mfpo.hosted import episode_sampler, segment_sampler
from mfpo.rollout import Sampler, pure_sampler
from mfpo.types import Algorithm, Env, PureEnv


def make_sampler(
    env: Env, algorithm: Algorithm, agents: int, devices: Sequence[Any] | None = None, first: int = 0
) -> Sampler:
    """The sampler of what the algorithm plans, for so many agents: to be compiled if the environment is pure.

    One on the host may evaluate policies on all of the `devices`, by default on all there are, and may be that of the
    agents from number `first` on.
    """
    plan, act = algorithm.plan, algorithm.act
    if not isinstance(env, PureEnv):
        if plan.segment:
            return segment_sampler(env, act, agents, plan.episodes, plan.segment, devices, algorithm.ready, first)
        return episode_sampler(env, act, agents, plan.episodes, devices, first)
    if plan.segment:
        raise ConfigError(
            f"--env-steps was given, but {env.spec.id} is compiled and samples whole episodes; leave it out."
        )
    sample = pure_sampler(env, act, plan.episodes)
    return lambda actors, keys, ids, step: sample(actors, keys, ids)


def make_server_sampler(env: Env, algorithm: Algorithm, devices: Sequence[Any] | None = None) -> Sampler | None:
    """The sampler of the server's own environment, for a block of one; None if it does not refine."""
    if algorithm.refine is None:
        return None
    plan = algorithm.plan._replace(episodes=algorithm.plan.server_episodes)
    return make_sampler(of_server(env, 1), algorithm._replace(plan=plan), 1, devices)


def of_server(env: Env, blocks: int) -> Env:
    """The server's own environment, for so many blocks: in the agents' world if they share one, else the usual one."""
    shared = env.worlds[:1] if len(set(env.worlds)) == 1 else ()
    return env._replace(worlds=shared * blocks)
