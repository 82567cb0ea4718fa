"""Where an algorithm meets the world: engines that run `local` and `serve` (see `round`)."""

from mfpo import registry
from mfpo.federation.evaluation import evaluate
from mfpo.federation.round import Engine, RoundLog, State
from mfpo.types import Algorithm, Env

__all__ = ["ENGINES", "Engine", "RoundLog", "State", "evaluate", "make_engine"]

ENGINES = ("inprocess", "debug")


def make_engine(name: str, algorithm: Algorithm, env: Env, agents: int, seed: int, devices: int = 0) -> Engine:
    """The engine registered under `name`; `devices` bounds how many JAX devices it uses (0: no bound)."""
    engine: Engine = registry.get(__name__, name).make(algorithm, env, agents, seed, devices)
    return engine
