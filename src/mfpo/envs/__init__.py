"""The world. One file per environment (or family); see CONTRIBUTING for the recipe."""

import functools

from mfpo import registry
from mfpo.types import PureEnv


@functools.lru_cache(maxsize=32)  # one value per setting: programs compiled for it are found again
def make(name: str) -> PureEnv:
    """The environment registered under `name`."""
    env: PureEnv = registry.get(__name__, name).make(name)
    return env


def list_environments() -> list[str]:
    """The names `make` knows."""
    return sorted(registry.names(__name__))
