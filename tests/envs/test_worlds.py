import re
from types import ModuleType

import pytest

from mfpo import envs, registry
from mfpo.envs import cartpole, pendulum
from mfpo.envs.worlds import parse
from mfpo.errors import ConfigError


def test_without_a_line_all_live_in_the_usual_world() -> None:
    assert parse("", 5) == () and envs.make("CartPole-v1", agents=5).worlds == ()


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("x=3", [3, 3, 3, 3, 3]),
        ("x=1,2", [1, 2, 1, 2, 1]),
        ("x=0..2", [0, 0.5, 1, 1.5, 2]),
        ("x=2..-2", [2, 1, 0, -1, -2]),
        ("x=1e-1..0.3", [0.1, 0.15, 0.2, 0.25, 0.3]),
        ("x=true,false", [True, False, True, False, True]),
        ("x=True,FALSE", [True, False, True, False, True]),
        ("x=4x4", ["4x4"] * 5),
        ("x=2024_01,007,-0,1_0.5", ["2024_01", "007", 0, "1_0.5", "2024_01"]),
        ("x=../data/one.csv,a..b", ["../data/one.csv", "a..b"] * 2 + ["../data/one.csv"]),
        ("x=0.5,.5,+3,-2e-1,1e3", [0.5, 0.5, 3, -0.2, 1000.0]),
    ],
)
def test_values_are_dealt_out(line: str, values: list[object]) -> None:
    assert parse(line, 5) == tuple((("x", value),) for value in values)


def test_one_agent_gets_the_low_end_of_a_range() -> None:
    assert parse("x=1..2", 1) == ((("x", 1.0),),)


def test_worlds_of_a_pure_environment_have_all_parameters() -> None:
    env = envs.make("CartPole-v1", world="length=0.5,1 gravity=5", agents=2)
    assert [(w.length, w.gravity, w.masscart) for w in env.worlds] == [(0.5, 5, 1.0), (1, 5, 1.0)]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("length", "--world has 'length', which is not a parameter and its values"),
        ("length=", "--world has 'length='"),
        ("=3", "--world has '=3'"),
        ("length=1 length=2", "--world gives 'length' twice"),
        ("length=a..2", "both ends must be numbers"),
        ("lenght=1", "--world sets 'lenght', which CartPole-v1 does not have. Did you mean length?"),
        ("length=long", "--world sets length=long, but CartPole-v1 takes a finite number there"),
        ("length=inf", "takes a finite number"),
        ("length=true", "takes a finite number"),
    ],
)
def test_mistakes_get_a_sentence(line: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("(", r"\(")):
        envs.make("CartPole-v1", world=line, agents=3)


PHYSICS = [(module, key) for module in (cartpole, pendulum) for key in module.World._fields]


@pytest.mark.parametrize(("module", "key"), PHYSICS)
def test_quantities_of_pure_environments_have_to_be_possible(module: ModuleType, key: str) -> None:
    (name,), weightless = module.NAMES, key in ("gravity", "g")
    least = "0 or more" if weightless else "greater than 0"
    for value in (-1, *((-1e-9,) if weightless else (0, 1e-50)), 1e50, float("inf"), float("nan")):
        sentence = f"The world of {name} has {key} = {value}, which has to be finite and {least}, in 32 bits."
        with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
            module.check(name, {key: value})
    least_possible = 0 if weightless else 1e-3
    assert module.check(name, {key: least_possible}) == module.World()._replace(**{key: least_possible})


@pytest.mark.parametrize(
    ("name", "line", "sentence"),
    [
        ("CartPole-v1", "length=0.5,0", "The world of CartPole-v1 has length = 0, which"),
        ("CartPole-v1", "gravity=9.8..-1", "The world of CartPole-v1 has gravity = -1"),
        ("Pendulum-v1", "g=0 l=-1", "The world of Pendulum-v1 has l = -1, which"),
        ("Hopper-v5", "mass=1,0", "The world of Hopper-v5 has mass = 0, which"),
        ("ALE/Breakout-v5", "sticky=0..2", "The world of ALE/Breakout-v5 has sticky = 2"),
    ],
)
def test_a_single_agent_in_an_impossible_world_is_found_when_the_environment_is_made(
    name: str, line: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        envs.make(name, world=line, agents=2)


def test_every_environment_of_ours_checks_its_worlds() -> None:
    for name in envs.list_environments():
        usual = envs.make(name).world
        assert registry.get("mfpo.envs", name).check(name, {}) == usual
