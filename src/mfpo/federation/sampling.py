"""Which sampler an environment needs."""

from mfpo.errors import ConfigError
from mfpo.hosted import hosted_sampler
from mfpo.rollout import Sampler, pure_sampler
from mfpo.types import Algorithm, Env, PureEnv


def make_sampler(env: Env, algorithm: Algorithm, agents: int) -> Sampler:
    """The sampler of what the algorithm plans: to be compiled if the environment is pure, else for the host."""
    plan = algorithm.plan
    if not isinstance(env, PureEnv):
        return hosted_sampler(env, algorithm.act, agents, plan.episodes, plan.segment)
    if plan.segment:
        raise ConfigError(
            f"--env-steps was given, but {env.spec.id} is compiled and samples whole episodes; leave it out."
        )
    return pure_sampler(env, algorithm.act, plan.episodes)
