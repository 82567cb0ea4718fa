"""The world. One file per environment (or family); see CONTRIBUTING for the recipe."""

import functools
import math
from typing import Any

from mfpo import registry
from mfpo.envs import gymnasium_env, registrations, worlds
from mfpo.envs.processes import in_processes
from mfpo.errors import ConfigError, did_you_mean
from mfpo.types import Env, PureEnv

__all__ = ["list_environments", "make"]


def make(name: str, horizon: int = 0, world: str = "", agents: int = 1, processes: int = 0) -> Env:
    """The environment registered under `name` here, or else with Gymnasium (an id, or package.module:EnvId).

    `horizon` cuts episodes (0: the environment's own), `world` says how the agents' worlds differ (see `worlds`). So
    many `processes` step an environment of Gymnasium at the same time (0: this one does, copy after copy).
    """
    registered = None if _own(name) in list_environments() else registrations.find(name)
    return _make(name, horizon, world, agents, processes, id(registered))


def _own(name: str) -> str:
    return "ALE/Pong-v5" if name.startswith("ALE/") else name  # one file serves all games


@functools.lru_cache(maxsize=32)  # one value per setting: programs compiled for it are found again
def _make(name: str, horizon: int, world: str, agents: int, processes: int, registered: int) -> Env:
    """`registered` tells an environment from one that was registered under its name before, in a notebook say."""
    each, own = worlds.parse(world, agents), _own(name)
    if own not in list_environments():
        first = dict(each[0]) if each else {}
        hosted = gymnasium_env.make(name, horizon, first)._replace(worlds=each)
        return in_processes(hosted, horizon, first, processes) if processes else hosted
    if processes:
        raise ConfigError(f"--processes was given, but {name} uses every core in this one; leave it out.")
    module = registry.get(__name__, own)
    env: Env = module.make(name)
    env = env._replace(spec=env.spec._replace(horizon=horizon or env.spec.horizon))
    for pairs in each:
        _check(name, env.world, pairs)
    checked = tuple(module.check(name, dict(pairs)) for pairs in each)  # before a run directory is made
    return env._replace(worlds=checked if isinstance(env, PureEnv) else each)


def _check(name: str, usual: Any, pairs: tuple[tuple[str, Any], ...]) -> None:
    for parameter, value in pairs:
        if parameter not in usual._fields:
            near = did_you_mean(parameter, usual._fields)
            raise ConfigError(f"--world sets {parameter!r}, which {name} does not have. {near}")
        if isinstance(value, bool | str) or not math.isfinite(value):
            raise ConfigError(f"--world sets {parameter}={value}, but {name} takes a finite number there.")


def list_environments() -> list[str]:
    """The names that have an implementation of their own here; Gymnasium's other ids work too."""
    return sorted(registry.names(__name__))
