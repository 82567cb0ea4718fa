"""What environments of Gymnasium may do wrong, and what becomes of it."""

import os
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tests.envs.toys import INF, TWO, Toy, all_of, copies_of, seeds

from mfpo.envs import gymnasium_env
from mfpo.errors import ConfigError, CopyFailed, StepFailed


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: np.zeros(3), r"an observation has the shape \(3,\), but its space has \(2,\)"),
        (lambda: ["a", "b"], "an observation does not consist of numbers"),
        (lambda: None, "an observation has the shape"),
    ],
)
def test_the_copy_that_failed_is_named(toy, second, reason):
    env = gymnasium_env.make(toy())
    with copies_of(env, {}, {}, {"say": lambda step: np.zeros(2) if step < 2 else second()}) as (copies, _):
        copies.reset(all_of(3), seeds(0, 0, 0))
        copies.step(np.array([2, 0]), np.zeros(2, np.int32))
        with pytest.raises(CopyFailed, match=reason) as caught:
            copies.step(np.array([0, 2]), np.zeros(2, np.int32))
        assert caught.value.copy == 2 and type(caught.value.copy) is int
        assert caught.value.__cause__ is not None


class Stepped(Toy):
    """Its step returns what `say` makes of the usual five values."""

    def step(self, action):
        return self.say(list(super().step(action)))

    def observe(self):
        return self.observation_space.sample()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "TypeError: terminated is neither true nor false: None"),
        ("False", "TypeError: terminated is neither true nor false: 'False'"),
        (np.zeros(2), "TypeError: terminated is neither true nor false"),
    ],
)
def test_an_end_that_is_neither_true_nor_false_is_a_failure(toy, value, reason):
    env = gymnasium_env.make(toy(creator=Stepped, say=lambda five: (*five[:2], value, *five[3:])))
    with copies_of(env) as (copies, _):
        copies.reset(all_of(1), seeds(0))
        with pytest.raises(CopyFailed, match=reason):
            copies.step(all_of(1), np.zeros(1, np.int32))


@pytest.mark.parametrize("value", [True, np.True_, 1, np.array([True])], ids=repr)
def test_an_end_may_be_any_truth(toy, value):
    env = gymnasium_env.make(toy(creator=Stepped, say=lambda five: (*five[:2], value, value, *five[4:])))
    with copies_of(env) as (copies, _):
        copies.reset(all_of(1), seeds(0))
        _, _, terminated, truncated, _ = copies.step(all_of(1), np.zeros(1, np.int32))
        assert terminated.tolist() == truncated.tolist() == [True]


@pytest.mark.parametrize("say", [lambda five: five[:4], lambda five: (*five, 1), lambda five: None])
def test_a_step_that_returns_no_five_values_is_explained(toy, say):
    with copies_of(gymnasium_env.make(toy(creator=Stepped, say=say))) as (copies, _):
        copies.reset(all_of(1), seeds(0))
        with pytest.raises(CopyFailed, match=r"^TypeError: its step\(\) should return five values: observation, rew"):
            copies.step(all_of(1), np.zeros(1, np.int32))


@pytest.mark.parametrize("reward", [2, True, np.float32(0.5), Fraction(1, 2), Decimal("0.5"), np.array([[3]])])
def test_a_reward_may_be_any_number(toy, reward):
    with copies_of(gymnasium_env.make(toy()), {"slope": reward}) as (copies, _):
        copies.reset(all_of(1), seeds(0))
        assert copies.step(all_of(1), np.zeros(1, np.int32))[1] == np.asarray(reward, float)


@pytest.mark.parametrize("say", ["reward", "none"])
def test_a_reward_that_is_not_a_number_is_a_failure(toy, say):
    with copies_of(gymnasium_env.make(toy()), {}, {"say": say}) as (copies, _):
        copies.reset(all_of(2), seeds(0, 0))
        with pytest.raises(CopyFailed, match="the reward is not a number: ('much'|None)") as caught:
            copies.step(all_of(2), np.zeros(2, np.int32))
        assert caught.value.copy == 1


def test_a_reward_may_be_an_array_of_one_number(toy):
    with copies_of(gymnasium_env.make(toy()), {"say": "vector"}) as (copies, _):
        copies.reset(all_of(1), seeds(0))
        assert copies.step(all_of(1), np.zeros(1, np.int32))[1].tolist() == [1.0]


def test_a_failing_reset_names_its_copy(toy):
    class Broken(Toy):
        def reset(self, *, seed=None, options=None):
            if seed == 4:
                raise RuntimeError("no more episodes")
            return super().reset(seed=seed)

    with copies_of(gymnasium_env.make(toy(creator=Broken)), {}, {}) as (copies, _):
        with pytest.raises(CopyFailed, match="RuntimeError: no more episodes") as caught:
            copies.reset(np.array([1, 0]), seeds(4, 0))
        assert caught.value.copy == 1


def test_an_interrupt_is_not_a_failure(toy):
    def interrupted(step):
        raise KeyboardInterrupt

    with (
        copies_of(gymnasium_env.make(toy()), {"say": interrupted}) as (copies, _),
        pytest.raises(KeyboardInterrupt),
    ):
        copies.reset(all_of(1), seeds(0))


def test_numbers_that_are_not_finite_are_passed_on(toy):
    strange = np.array([np.nan, 1e300])
    with copies_of(gymnasium_env.make(toy()), {"say": lambda step: strange, "slope": -1e300}) as (copies, _):
        np.testing.assert_array_equal(copies.reset(all_of(1), seeds(0)), [[np.nan, np.inf]])
        observation, reward, _, _, _ = copies.step(all_of(1), np.zeros(1, np.int32))
        np.testing.assert_array_equal(observation, [[np.nan, np.inf]])
        assert reward.tolist() == [-INF]


@pytest.mark.parametrize("value", [4, -1, [0, 3], [-1, 0]])
def test_a_choice_outside_its_space_is_a_failure(toy, value):
    space = spaces.Discrete(4) if isinstance(value, int) else spaces.MultiDiscrete([2, 3])
    said = np.array(value) if isinstance(value, list) else value
    with (
        copies_of(gymnasium_env.make(toy(observation_space=space)), {"say": lambda step: said}) as (copies, _),
        pytest.raises(CopyFailed, match="is outside its space"),
    ):
        copies.reset(all_of(1), seeds(0))


PARTS = spaces.Dict({"a": TWO, "b": spaces.Tuple((TWO, TWO))})


@pytest.mark.parametrize(
    ("space", "said", "reason"),
    [
        (TWO, 0.5, "the observation .* is outside its space"),
        (TWO, np.zeros(2), "cannot reshape"),
        (spaces.MultiDiscrete([2, 3]), np.array([0.7, 1.2]), r"the observation \[0.7, 1.2\] is outside its space"),
        (PARTS, [1, 2], r"an observation is \[1, 2\], but its space is a dict of a, b"),
        (PARTS, {"a": 1}, "an observation is {'a': 1}, but its space is a dict of a, b"),
        (PARTS, {"a": 1, "b": (1,)}, r"an observation is \(1,\), but its space is a tuple of 2 parts"),
    ],
    ids=repr,
)
def test_an_observation_that_is_not_of_its_space_is_explained(toy, space, said, reason):
    env = gymnasium_env.make(toy(observation_space=space))
    with (
        copies_of(env, {"say": lambda step: said}) as (copies, _),
        pytest.raises(CopyFailed, match=f"^ValueError: {reason}"),
    ):
        copies.reset(all_of(1), seeds(0))


def test_the_line_that_failed_is_told(toy):
    class Based(Toy):
        def observe(self):
            assert self.seeds == [], "too late"

    with copies_of(gymnasium_env.make(toy(creator=Based))) as (copies, _), pytest.raises(CopyFailed) as caught:
        copies.reset(all_of(1), seeds(0))
    line = Based.observe.__code__.co_firstlineno + 1
    assert str(caught.value).startswith("AssertionError: too late")
    assert str(caught.value).endswith(f", in line {line} of {Path(__file__).name}")


class Panic(BaseException):
    """As extensions raise that are not written in Python."""


@pytest.mark.parametrize("error", [SystemExit("bye"), Panic("bye")], ids=lambda error: type(error).__name__)
def test_nothing_an_environment_raises_gets_past_us(toy, error):
    kind = type(error).__name__

    class Ending(Toy):
        def __init__(self, where="", **kwargs):
            super().__init__(**kwargs)
            self.where = where
            self.end("made")

        def end(self, where):
            if self.where == where:
                raise error

        def reset(self, *, seed=None, options=None):
            self.end("reset")
            return super().reset(seed=seed)

        def step(self, action):
            self.end("step")
            return super().step(action)

    env = gymnasium_env.make(toy(creator=Ending))
    with pytest.raises(StepFailed, match=f"cannot be made with where=made: {kind}: bye"):
        env.open([{"where": "made"}])
    with copies_of(env, {"where": "reset"}) as (copies, _), pytest.raises(CopyFailed, match=f"^{kind}: bye, in line"):
        copies.reset(all_of(1), seeds(0))
    with copies_of(env, {"where": "step"}) as (copies, _):
        copies.reset(all_of(1), seeds(0))
        with pytest.raises(CopyFailed, match=f"^{kind}: bye, in line"):
            copies.step(all_of(1), np.zeros(1, np.int32))


@pytest.mark.parametrize(
    "error", [RuntimeError("stuck"), SystemExit(5), Panic()], ids=lambda error: type(error).__name__
)
def test_an_environment_that_cannot_be_closed_can_be_used(toy, error):
    class Stuck(Toy):
        def close(self):
            raise error

    with copies_of(gymnasium_env.make(toy(creator=Stuck))) as (copies, _):
        assert copies.reset(all_of(1), seeds(0)).shape == (1, 2)


def test_the_working_directory_is_theirs_while_they_run_and_ours_in_between(toy, tmp_path, monkeypatch):
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    monkeypatch.chdir(tmp_path / "ours")
    places = []

    class Moving(Toy):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            os.chdir(tmp_path / "theirs")

        def step(self, action):
            places.append(Path.cwd().name)
            return super().step(action)

    with copies_of(gymnasium_env.make(toy(creator=Moving))) as (copies, _):
        for _ in range(2):
            copies.reset(all_of(1), seeds(0))
            assert Path.cwd().name == "ours"
            copies.step(all_of(1), np.zeros(1, np.int32))
            assert Path.cwd().name == "ours"
    assert places == ["theirs", "theirs"]


@pytest.mark.parametrize("missing", ["observation_space", "action_space"])
def test_a_space_that_is_missing_is_asked_for(toy, missing):
    class Blank(Toy):
        def __init__(self):
            super().__init__()
            delattr(self, missing)

    with pytest.raises(ConfigError, match=f"Toy-v0 has no {missing}; set it in its class or in __init__, as in self."):
        gymnasium_env.make(toy(creator=Blank))


def test_a_constructor_that_fails_is_told_with_its_arguments(toy):
    class Fussy(Toy):
        def __init__(self, size=3):
            super().__init__(size=10 // size)

    env = gymnasium_env.make(toy(creator=Fussy))
    with pytest.raises(StepFailed, match="Toy-v0 cannot be made with size=0: ZeroDivisionError") as caught:
        env.open([{}, {"size": 0}])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_class_that_is_no_environment_is_told_in_one_sentence(toy):
    class Thing:
        def __init__(self, size=3):
            self.size = size

    sentence = "its class .*Thing is not a gymnasium.Env; let it inherit from that"
    toy(creator=Thing)
    for world, how in ({}, ""), ({"size": 4}, " with size=4"):
        with pytest.raises(
            ConfigError, match=rf"^The environment Toy-v0 cannot be made{how}: TypeError: {sentence}\.$"
        ):
            gymnasium_env.make("Toy-v0", world=world)
    toy("Made-v0", creator=lambda: Thing())
    with pytest.raises(
        ConfigError, match=r"cannot be made: TypeError: .*inherit from the gymnasium.Env.*[^.]\.$"
    ) as told:
        gymnasium_env.make("Made-v0")
    assert "It takes" not in str(told.value)


def test_an_environment_that_is_registered_as_a_vectorised_one_only_is_told(toy):
    gymnasium.registry[toy()].entry_point = None
    with pytest.raises(ConfigError, match="TypeError: only a vectorised version is registered; register a single env"):
        gymnasium_env.make("Toy-v0")
