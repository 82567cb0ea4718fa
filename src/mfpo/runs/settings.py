"""The settings of a run, and where their values come from: what was asked for, else the preset, else the default."""

import importlib.resources
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from mfpo import algorithms
from mfpo.config import build, field_types, flag, option, validate
from mfpo.errors import ConfigError, UnknownName, did_you_mean
from mfpo.federation import ATTACKS, ENGINES, FLOWER, OWN, RULES, Faults


@dataclass(frozen=True)
class Settings:
    """Everything about a run but its algorithm's own settings; both together fix the result."""

    env: str = option(MISSING, "environment to learn: of `mfpo list`, a Gymnasium id, or package.module:EnvId")
    algorithm: str = option("mfpo", "learning algorithm, as `mfpo list` names it")
    preset: str = option(
        "default", "named set of values for this environment and algorithm; your own flags win over it"
    )
    agents: int = option(10, "number of agents that learn together", symbol="N", least=1, most=10**6)
    rounds: int = option(30, "number of communication rounds", symbol="T", least=1)
    seed: int = option(0, "the one source of all randomness; the same seed gives the same run", least=0, most=2**32 - 1)
    horizon: int = option(
        0, "steps after which an episode is cut; 0: the environment's own limit", symbol="H", least=0, most=10**7
    )
    world: str = option("", "how the agents' worlds differ, as in 'length=0.3..0.7 gravity=9.8,12'")
    engine: str = option(
        "inprocess",
        "where the agents run: all at once, one by one with exact errors, or on other machines (`mfpo federation`)",
        choices=(*ENGINES, FLOWER),
    )
    devices: int = option(
        0, "JAX devices to spread the agents over, as far as they divide evenly; 0 takes all", least=0
    )
    processes: int = option(
        0,
        "processes that step a Gymnasium environment at the same time; 0: this one does, copy after copy",
        least=0,
        most=1024,
    )
    aggregation: str = option(OWN, "how the server makes one of what the agents send", choices=RULES)
    tolerance: int = option(
        0, "liars the aggregation withstands; 0: as many as --byzantine, without any as many as it can", least=0
    )
    byzantine: int = option(0, "agents that attack: the first ones", least=0)
    attack: str = option("sign-flip", "what they do", choices=ATTACKS)
    attack_strength: float = option(3.0, "length of what they send, in units of what they learned", above=0)
    participation: float = option(1.0, "share of the agents that are asked in a round", above=0, most=1)
    dropout: float = option(0.0, "chance that an agent misses a round", least=0, most=0.99)
    stragglers: float = option(0.0, "chance that an agent answers too late", least=0, most=0.99)
    evaluation_episodes: int = option(100, "fresh episodes a policy is judged by", least=1)
    evaluation_every: int = option(
        0, "rounds after which the policy is judged on the way, too; 0: the final one only", least=0
    )
    reference_every: int = option(
        0, "rounds after which the server's direction is compared with a gradient measured apart; 0: never", least=0
    )
    reference_trajectories: int = option(1000, "trajectories to measure it with, at least", least=2, most=10**7)

    def __post_init__(self) -> None:
        validate(self)
        if self.processes and self.engine == "debug":
            raise ConfigError(
                "--processes was given, but --engine debug goes from agent to agent in one process; leave one out."
            )

    @property
    def faults(self) -> Faults:
        """What goes wrong on purpose."""
        return Faults(
            self.byzantine, self.attack, self.attack_strength, self.participation, self.dropout, self.stragglers
        )


def resolve(settings_values: Mapping[str, Any], algorithm_values: Mapping[str, Any]) -> tuple[Settings, Any]:
    """Settings and algorithm config, from the values that were asked for; preset and defaults fill in the rest."""
    asked = _asked(settings_values)
    config_class = algorithms.config_class(asked.algorithm)
    preset = _preset(asked.env, asked.algorithm, asked.preset)
    of_run = preset.pop("run", {})
    where = f"The preset {asked.preset!r} of {asked.env}"
    fixed = sorted({"env", "algorithm", "preset"} & of_run.keys())
    if fixed:
        raise ConfigError(f"{where} sets {fixed[0]!r}, but a preset cannot choose that; remove the line.")
    build(Settings, {"env": asked.env, **of_run}, where)  # so that an error names its source
    build(config_class, preset, where)
    settings = build(Settings, {**of_run, **settings_values}, "The run")
    of_attack = settings_values.keys() & {"attack", "attack_strength"}
    if of_attack and "byzantine" not in settings_values and not settings.byzantine:
        given = flag(min(of_attack))
        raise ConfigError(f"{given} was given, but nobody attacks; --byzantine N says how many agents do.")
    return settings, build(config_class, {**preset, **algorithm_values}, f"The algorithm {asked.algorithm}")


def resolve_options(options: Mapping[str, Any]) -> tuple[Settings, Any]:
    """`resolve` for one flat mapping, as Python callers write it: each name belongs to the run or to its algorithm."""
    of_run = {name: value for name, value in options.items() if name in field_types(Settings)}
    algorithm = _asked(of_run).algorithm
    known = field_types(algorithms.config_class(algorithm))
    for name in options:
        if name not in of_run and name not in known:
            near = did_you_mean(name, {*field_types(Settings), *known})
            raise ConfigError(f"There is no setting {name!r} for the algorithm {algorithm}. {near}")
    return resolve(of_run, {name: value for name, value in options.items() if name not in of_run})


def _asked(values: Mapping[str, Any]) -> Settings:
    """The values asked for, checked one by one before any name among them is looked up."""
    if "env" not in values:
        raise ConfigError("No environment was given; `mfpo list` shows what there is.")
    return build(Settings, values, "The run")


def list_presets(env: str, algorithm: str) -> list[str]:
    """The presets of an algorithm on an environment; there is always a "default"."""
    return sorted({"default", *_presets(env, algorithm)})


def is_tuned(env: str, algorithm: str) -> bool:
    """Whether the settings were chosen for it; else they are the algorithm's for an unknown environment."""
    return "default" in _presets(env, algorithm)


def _preset(env: str, algorithm: str, name: str) -> dict[str, Any]:
    """A preset's table. An environment without a "default" uses the defaults of the dataclasses."""
    presets = _presets(env, algorithm)
    if name not in presets and name != "default":
        near = did_you_mean(name, list_presets(env, algorithm))
        raise UnknownName(f"There is no preset {name!r} for {algorithm} on {env}. {near}")
    return dict(presets.get(name, {}))


def _presets(env: str, algorithm: str) -> dict[str, Any]:
    """Preset name -> table. The files are part of the package, one per environment, a table per algorithm.

    Environments with a namespace share one: ALE.toml is for ALE/Pong-v5 and every other game of ALE.
    """
    name = env.partition("/")[0] + ".toml"
    for file in (importlib.resources.files("mfpo") / "presets").iterdir():  # any text may be given, so none is opened
        if file.name == name:
            presets: dict[str, Any] = tomllib.loads(file.read_text("utf-8")).get(algorithm, {})
            return presets
    return {}
