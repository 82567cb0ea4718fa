"""One file per algorithm: Config, state types, and `make(config, spec, agents) -> Algorithm`. See CONTRIBUTING."""

import functools
from typing import Any

from mfpo import registry
from mfpo.types import Algorithm, EnvSpec


def config_class(name: str) -> type[Any]:
    """The frozen dataclass that configures the algorithm registered under `name`."""
    cls: type[Any] = registry.get(__name__, name).Config
    return cls


@functools.lru_cache(maxsize=32)  # one value per setting: programs compiled for it are found again
def make(name: str, config: Any, spec: EnvSpec, agents: int) -> Algorithm:
    """The algorithm registered under `name`, for an environment and a number of agents."""
    algorithm: Algorithm = registry.get(__name__, name).make(config, spec, agents)
    return algorithm


def list_algorithms() -> list[str]:
    """The names `make` knows."""
    return sorted(registry.names(__name__))
