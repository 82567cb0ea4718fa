"""Where an algorithm meets the world: engines that run `local` and `serve` (see `round`)."""

from mfpo import registry
from mfpo.errors import ConfigError
from mfpo.federation.evaluation import evaluate
from mfpo.federation.faults import ATTACKS, NONE, Faults, asked, check
from mfpo.federation.inprocess import make_on as make_engine_on
from mfpo.federation.logs import RoundLog
from mfpo.federation.reference import measured
from mfpo.federation.robust import OWN, RULES, robust
from mfpo.federation.round import Engine, State
from mfpo.federation.sampling import of_server
from mfpo.types import Algorithm, Env

__all__ = [
    "ATTACKS",
    "ENGINES",
    "FLOWER",
    "OWN",
    "RULES",
    "Engine",
    "Faults",
    "RoundLog",
    "State",
    "asked",
    "check",
    "evaluate",
    "make_engine",
    "make_engine_on",
    "measured",
    "of_server",
    "robust",
]

ENGINES = ("inprocess", "debug")
FLOWER = "flower"  # the agents are elsewhere, so that settings alone do not make this one


def make_engine(
    name: str, algorithm: Algorithm, env: Env, agents: int, seed: int, devices: int = 0, faults: Faults = NONE
) -> Engine:
    """The engine registered under `name`; `devices` bounds how many JAX devices it uses (0: no bound)."""
    if name == FLOWER:
        raise ConfigError(
            "The engine is flower, whose agents are on other machines; start or continue such a run with "
            "`mfpo federation submit`, or take another engine."
        )
    check(faults, agents)
    engine: Engine = registry.get(__name__, name).make(algorithm, env, agents, seed, devices, faults)
    return engine
