from types import ModuleType
from typing import Any

import pytest

from mfpo.errors import ConfigError, UnknownName
from mfpo.runs import settings
from mfpo.runs.settings import Settings, list_presets, resolve, resolve_options

PRESETS = {
    "default": {"stepsize": 0.5, "run": {"rounds": 7, "agents": 4}},
    "paper": {"stepsize": 1e-3, "hidden": [16]},
    "broken": {"stepsise": 1.0},
    "greedy": {"run": {"seed": 3, "env": "Pendulum-v1"}},
    "wrong": {"run": {"rounds": 0}},
}


@pytest.fixture(autouse=True)
def presets(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_presets", lambda env, algorithm: PRESETS if env == "CartPole-v1" else {})


def test_asked_for_wins_over_preset_and_preset_over_default() -> None:
    run, config = resolve({"env": "CartPole-v1", "algorithm": "fake", "rounds": 9}, {"hidden": [2, 2]})
    assert (run.rounds, run.agents, run.seed) == (9, 4, 0)
    assert (config.stepsize, config.hidden) == (0.5, (2, 2))


def test_named_preset_does_not_inherit_the_default_one() -> None:
    run, config = resolve_options({"env": "CartPole-v1", "algorithm": "fake", "preset": "paper"})
    assert (run.rounds, run.preset, config.stepsize, config.hidden) == (30, "paper", 1e-3, (16,))


def test_environment_without_presets_has_the_dataclass_defaults(fake: ModuleType) -> None:
    run, config = resolve({"env": "Pendulum-v1", "algorithm": "fake"}, {})
    assert config == fake.Config()
    assert run == Settings(env="Pendulum-v1", algorithm="fake")
    assert list_presets("Pendulum-v1", "fake") == ["default"]
    assert "paper" in list_presets("CartPole-v1", "fake")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"preset": "papr"}, UnknownName, "Did you mean paper?"),
        ({"algorithm": "fakir"}, UnknownName, "fakir"),
        ({"agents": 0}, ConfigError, "--agents is 0, but it must be at least 1"),
        ({"rounds": 2.5}, ConfigError, "--rounds is 2.5"),
        ({"seed": -1}, ConfigError, "--seed"),
        ({"seed": 2**32}, ConfigError, "--seed"),
        ({"devices": -1}, ConfigError, "--devices"),
        ({"evaluation_episodes": 0}, ConfigError, "--evaluation-episodes"),
        ({"engine": "debugg"}, ConfigError, "Did you mean debug?"),
        ({"algorithm": 5}, ConfigError, "--algorithm"),
        ({"stepsize": -1.0}, ConfigError, "--stepsize"),
        ({"stepsiz": 1.0}, ConfigError, "Did you mean stepsize?"),
        ({"agent": 1}, ConfigError, "Did you mean agents?"),
        ({"preset": "broken"}, ConfigError, "preset 'broken' of CartPole-v1 has an unknown setting 'stepsise'"),
        ({"preset": "greedy"}, ConfigError, "a preset cannot choose that"),
        ({"preset": "wrong", "rounds": 5}, ConfigError, "--rounds is 0"),
    ],
)
def test_bad_input_gives_a_sentence(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        resolve_options({"env": "CartPole-v1", "algorithm": "fake", **options})
    assert words in str(caught.value)


def test_an_environment_must_be_named() -> None:
    with pytest.raises(ConfigError, match="No environment"):
        resolve_options({"algorithm": "fake"})


def test_every_setting_is_documented() -> None:
    import dataclasses

    assert all(f.metadata["help"] for f in dataclasses.fields(Settings))
