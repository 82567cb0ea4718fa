"""Every field of a dataclass is a flag, and what the flag says is what the run gets."""

import dataclasses
import typing

import pytest

from mfpo.algorithms import config_class, list_algorithms
from mfpo.cli.parser import parse
from mfpo.config import field_types, flag, option
from mfpo.errors import MfpoError
from mfpo.runs.settings import Settings


def another(kind, default, choices):
    """A value that is not the default, and how to write it."""
    if kind is bool:
        return not default, None
    if choices:
        value = next(choice for choice in choices if choice != default)
        return value, value
    if typing.get_origin(kind) is tuple:
        return (3, 5, 7), "3,5,7"
    if kind is str:
        return "other", "other"
    return kind(default + 3), str(default + 3)


def all_fields():
    for algorithm in list_algorithms():
        for cls in (Settings, config_class(algorithm)):
            for field in dataclasses.fields(cls):
                if field.name not in ("env", "algorithm"):
                    kind = field_types(cls)[field.name]
                    yield pytest.param(algorithm, field, kind, id=f"{algorithm}-{field.name}")


@pytest.mark.parametrize(("algorithm", "field", "kind"), list(all_fields()))
def test_every_field_has_a_flag(algorithm, field, kind):
    value, text = another(kind, field.default, field.metadata.get("choices"))
    given = [flag(field.name), text] if text is not None else [flag(field.name if value else f"no_{field.name}")]
    args = vars(parse(["train", "CartPole-v1", "--algorithm", algorithm, *given]))
    assert args[field.name] == value
    others = {other.name for cls in (Settings, config_class(algorithm)) for other in dataclasses.fields(cls)}
    assert others & args.keys() == {"env", "algorithm", field.name}, "a flag that is not given leaves no trace"


def test_settings_and_configs_share_no_names():
    taken = field_types(Settings).keys() | {"command", "fields", "json", "quiet", "tensorboard", "out"}
    for algorithm in list_algorithms():
        assert not taken & field_types(config_class(algorithm)).keys()


class Asked(MfpoError):
    pass


@pytest.fixture
def asked(monkeypatch):
    """What `mfpo train` hands to the training."""
    seen = {}

    def fake(settings, config, out=None, **watch):
        seen.update(settings=settings, config=config, out=out)
        raise Asked("enough")

    monkeypatch.setattr("mfpo.runs.training.train", fake)
    return seen


def test_who_attacks_may_be_said_by_a_sweep(mfpo, asked):
    """Nobody does in one of its runs."""
    mfpo("train", "CartPole-v1", "--byzantine", 0, "--attack", "zero")
    assert (asked["settings"].byzantine, asked["settings"].attack) == (0, "zero")


def test_flags_reach_the_training(mfpo, asked):
    flags = "--agents 7 --seed 5 --rounds 9 --local-steps 4 --trajectories 6 --stepsize 1e-2 --hidden 8,9 --out there"
    code, _, err = mfpo("train", "Pendulum-v1", *flags.split(), "--no-server-adjustment", "--weight-cap", "inf")
    assert (code, err) == (2, "mfpo: enough\n")
    settings, config = asked["settings"], asked["config"]
    assert (settings.env, settings.agents, settings.seed, settings.rounds) == ("Pendulum-v1", 7, 5, 9)
    assert (config.local_steps, config.trajectories, config.stepsize, config.hidden) == (4, 6, 0.01, (8, 9))
    assert (config.server_adjustment, config.weight_cap, asked["out"]) == (False, float("inf"), "there")


def test_without_flags_the_preset_decides(mfpo, asked):
    from mfpo.runs.settings import resolve

    mfpo("train", "CartPole-v1")
    assert (asked["settings"], asked["config"]) == resolve({"env": "CartPole-v1"}, {})


def test_help_shows_symbol_default_and_choices(mfpo, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = mfpo("train", "--help")
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("  --")}
    assert "(K; default 10)" in lines["--local-steps"]
    assert "{inprocess,debug,flower}" in lines["--engine"]
    assert "--no-server-adjustment" in out
    assert out.index("the run:") < out.index("--agents") < out.index("the algorithm mfpo:") < out.index("--local-steps")


def test_help_of_an_environment_shows_the_defaults_of_its_preset(mfpo, monkeypatch):
    table = {"mfpo": {"default": {"local_steps": 17, "run": {"rounds": 23}}}}
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("mfpo.runs.settings._presets", lambda env, name: table[name] if env == "CartPole-v1" else {})
    _, out, _ = mfpo("train", "CartPole-v1", "--help")
    assert "(K; default 17)" in out
    assert "default 23)" in out
    assert "preset 'default' of CartPole-v1" in out


def test_every_game_of_ale_has_the_settings_of_the_games(mfpo, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = mfpo("train", "ALE/SpaceInvaders-v5", "--help")
    assert "preset 'default' of ALE/SpaceInvaders-v5" in out
    text = " ".join(out.split())
    assert "whole episodes (default 128)" in text and "plain is the paper's (default adam)" in text


@pytest.mark.parametrize(
    ("flag", "value"), [("--world", "length=" + "0.512," * 60 + "1"), ("--out", "ALE/out"), ("--out", "Pendulum-v1")]
)
def test_help_takes_no_value_of_a_flag_for_the_environment(mfpo, monkeypatch, flag, value):
    monkeypatch.setenv("COLUMNS", "120")
    for arguments in ((flag, value, "CartPole-v1"), ("CartPole-v1", flag, value), ("--quiet", "CartPole-v1")):
        _, out, _ = mfpo("train", *arguments, "--help")
        assert "preset 'default' of CartPole-v1" in out


def test_a_name_that_no_file_can_have_is_no_environment(mfpo):
    code, _, err = mfpo("train", "x" * 300)
    assert code == 2 and "There is no environment called" in err


def test_flags_follow_the_algorithm(mfpo, monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Config:
        patience: int = option(5, "steps to wait, in %", symbol="p")

    monkeypatch.setattr("mfpo.algorithms.config_class", lambda name: Config)
    _, out, _ = mfpo("train", "--algorithm=stoic", "--help")
    assert "the algorithm stoic:" in out
    assert "steps to wait, in % (p; default 5)" in out
    assert "--local-steps" not in out
    assert parse(["train", "CartPole-v1", "--algorithm", "stoic", "--patience", "8"]).patience == 8
