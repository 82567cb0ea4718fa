"""What settings stand for: the environment and the algorithm of a run."""

from typing import Any

from mfpo import algorithms, envs, federation
from mfpo.runs.settings import Settings
from mfpo.types import Algorithm, Env


def make_env(settings: Settings) -> Env:
    """The environment of a run, with the worlds of all its agents."""
    return envs.make(settings.env, settings.horizon, settings.world, settings.agents, settings.processes)


def make_algorithm(settings: Settings, config: Any, env: Env) -> Algorithm:
    """The algorithm of a run, with the aggregation it asks for."""
    federation.check(settings.faults, settings.agents)
    algorithm = algorithms.make(settings.algorithm, config, env.spec, settings.agents)
    withstands = settings.tolerance or settings.byzantine
    asked = federation.asked(settings.faults, settings.agents)
    return federation.robust(algorithm, settings.aggregation, settings.agents, withstands, asked)
