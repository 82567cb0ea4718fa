import pytest

from mfpo import envs
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
        ("x=4x4", ["4x4"] * 5),
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
