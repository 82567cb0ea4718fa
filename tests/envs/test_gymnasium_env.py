import contextlib
import functools
import os
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from mfpo import envs
from mfpo.envs import gymnasium_env
from mfpo.errors import ConfigError, CopyFailed, StepFailed
from mfpo.types import Box, Discrete, HostedEnv, MultiDiscrete

INF = float("inf")
ANY_BOX, TWO = spaces.Box(-INF, INF, (2,), np.float64), spaces.Discrete(2)


class Toy(gymnasium.Env):
    """Remembers what it was given; observations are samples of its space, or what `say` returns."""

    def __init__(self, observation_space=ANY_BOX, action_space=TWO, say=None, size=3, slope=0.5, on=False, text="a"):
        self.observation_space, self.action_space = observation_space, action_space
        self.say, self.size, self.slope, self.on, self.text = say, size, slope, on, text
        self.actions, self.seeds, self.closed = [], [], False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.seeds.append(seed)
        self.actions = []
        return self.observe(), {}

    def step(self, action):
        self.actions.append(action)
        reward = {"reward": "much", "none": None, "vector": np.ones(1)}.get(self.say, self.slope)
        return self.observe(), reward, len(self.actions) == 9, False, {}

    def observe(self):
        self.last = self.observation_space.sample()
        if callable(self.say):
            self.last = self.say(len(self.actions))
        return self.last

    def close(self):
        self.closed = True


@pytest.fixture
def toy():
    """Registers a Toy, and forgets it afterwards."""
    with contextlib.ExitStack() as stack:

        def register(env_id="Toy-v0", max_episode_steps=20, creator=Toy, **kwargs):
            gymnasium.register(
                env_id, functools.partial(creator, **kwargs) if kwargs else creator, max_episode_steps=max_episode_steps
            )
            stack.callback(gymnasium.registry.pop, env_id)
            return env_id

        yield register


@contextlib.contextmanager
def copies_of(env: HostedEnv, *worlds):
    copies = env.open(worlds or [{}])
    try:
        yield copies, [copy.env.unwrapped for copy in copies._copies]
    finally:
        copies.close()


def seeds(*values):
    return np.array(values, np.uint64)


def all_of(n):
    return np.arange(n)


# Spaces

FLAT = [
    spaces.Box(-1.0, 1.0, (3,)),
    spaces.Box(-INF, INF, (2, 3), np.float64),
    spaces.Box(-5, 5, (), np.float32),
    spaces.Box(0, 9, (2, 2), np.int64),
    spaces.Discrete(4),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([2, 3, 4]),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [-3, 7]]),
    spaces.MultiBinary(3),
    spaces.MultiBinary((2, 3)),
    spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Box(0.0, 1.0, (2,))}),
    spaces.Tuple((spaces.MultiBinary(2), spaces.Dict({"x": spaces.Box(0.0, 1.0, ()), "y": spaces.Discrete(2)}))),
]


@pytest.mark.parametrize("space", FLAT, ids=repr)
def test_observations_are_flattened_as_gymnasium_does(toy, space):
    env = gymnasium_env.make(toy(observation_space=space))
    assert env.spec.observation_shape == (spaces.flatdim(space),)
    with copies_of(env) as (copies, [inner]):
        observation = copies.reset(all_of(1), seeds(3))
        for _ in range(5):
            assert observation.dtype == np.float32 and observation.shape == (1, *env.spec.observation_shape)
            np.testing.assert_array_equal(observation[0], spaces.flatten(space, inner.last).astype(np.float32))
            observation, *_ = copies.step(all_of(1), np.zeros(1, np.int32))


def test_parts_may_be_given_as_an_array(toy):
    env = gymnasium_env.make(toy(observation_space=spaces.Tuple((TWO, spaces.Discrete(3)))))
    with copies_of(env, {"say": lambda step: np.array([1, 2])}) as (copies, _):
        assert copies.reset(all_of(1), seeds(0)).tolist() == [[0, 1, 0, 0, 1]]


def test_images_are_divided_by_255_inside_a_dict_too(toy):
    image = spaces.Box(0, 255, (2, 2, 3), np.uint8)
    space = spaces.Dict({"eye": image, "ear": spaces.Box(0.0, 9.0, (1,))})
    for env_id, whole in (("Image-v0", image), ("Both-v0", space)):
        env = gymnasium_env.make(toy(env_id, observation_space=whole))
        with copies_of(env) as (copies, [inner]):
            observation = copies.reset(all_of(1), seeds(3))[0]
            picture = inner.last if whole is image else inner.last["eye"]
            np.testing.assert_allclose(observation[-12:], picture.ravel() / 255, rtol=1e-6)


def test_bytes_that_are_no_image_are_divided_by_their_bound(toy):
    board = spaces.Box(np.zeros(3, np.uint8), np.array([2, 4, 0], np.uint8), dtype=np.uint8)
    env = gymnasium_env.make(toy(observation_space=board))
    with copies_of(env, {"say": lambda step: np.array([2, 1, 0], np.uint8)}) as (copies, _):
        assert copies.reset(all_of(1), seeds(3)).tolist() == [[1.0, 0.25, 0.0]]


ACTIONS = [
    (spaces.Discrete(3), Discrete(3), 2, 2),
    (spaces.Discrete(3, start=-1), Discrete(3), 2, 1),
    (spaces.MultiDiscrete([2, 3]), MultiDiscrete((2, 3)), [1, 2], [1, 2]),
    (
        spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [-3, 7]]),
        MultiDiscrete((2, 3, 4, 5)),
        [1, 2, 0, 4],
        [[2, 2], [-3, 11]],
    ),
    (spaces.MultiBinary(3), MultiDiscrete((2, 2, 2)), [1, 0, 1], [1, 0, 1]),
    (spaces.MultiBinary((2, 1)), MultiDiscrete((2, 2)), [1, 0], [[1], [0]]),
    (spaces.Box(-2.0, 2.0, (1,)), Box((-2.0,), (2.0,)), [1.5], [1.5]),
    (spaces.Box(-2.0, 2.0, ()), Box((-2.0,), (2.0,)), [1.5], 1.5),
    (
        spaces.Box(np.array([[-1.0, -INF]]), np.array([[INF, INF]]), dtype=np.float64),
        Box((-1.0, -INF), (INF, INF)),
        [-0.5, 70.0],
        [[-0.5, 70.0]],
    ),
]


@pytest.mark.parametrize(("space", "ours", "action", "theirs"), ACTIONS, ids=lambda x: repr(x)[:40])
def test_actions_arrive_in_the_space_of_the_environment(toy, space, ours, action, theirs):
    env = gymnasium_env.make(toy(action_space=space))
    assert env.spec.action == ours
    kind = np.float32 if isinstance(ours, Box) else np.int32
    with copies_of(env) as (copies, [inner]):
        copies.reset(all_of(1), seeds(3))
        copies.step(all_of(1), np.array([action], kind))
        [arrived] = inner.actions
        assert space.contains(arrived)
        np.testing.assert_array_equal(arrived, theirs)


def test_rounding_does_not_carry_an_action_over_its_bound(toy):
    space = spaces.Box(-0.1, 0.1, (1,), np.float64)  # 0.1 as float32 is larger
    with copies_of(gymnasium_env.make(toy(action_space=space))) as (copies, [inner]):
        copies.reset(all_of(1), seeds(3))
        copies.step(all_of(1), np.array([[0.1]], np.float32))
        assert space.contains(inner.actions[0])


def test_an_environment_may_write_to_its_action(toy):
    class Greedy(Toy):
        def step(self, action):
            action[:] = 77
            return super().step(action)

    action = np.array([[0.5]], np.float32)
    with copies_of(gymnasium_env.make(toy(creator=Greedy, action_space=spaces.Box(-1.0, 1.0, (1,))))) as (copies, _):
        copies.reset(all_of(1), seeds(0))
        copies.step(all_of(1), action)
    assert action == 0.5


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_the_largest_numbers_stand_for_no_bound(toy, kind, recwarn):
    largest = np.finfo(kind).max
    env = gymnasium_env.make(toy(action_space=spaces.Box(-largest, largest, (1,), kind)))
    assert env.spec.action == Box((-INF,), (INF,))
    env = gymnasium_env.make(toy("Small-v0", action_space=spaces.Box(-0.5, 0.25, (1,), kind)))
    assert env.spec.action == Box((-0.5,), (0.25,))
    assert not recwarn.list


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(TWO),
        spaces.Graph(ANY_BOX, None),
        spaces.OneOf((TWO, ANY_BOX)),
        spaces.Dict({"name": spaces.Text(5), "place": ANY_BOX}),
        spaces.Space((3,), np.float32),
    ],
    ids=lambda space: type(space).__name__,
)
def test_observations_without_a_fixed_size_are_refused(toy, space):
    sentence = (
        r"Toy-v0 has observations in .*(Text|Sequence|Graph|OneOf|Space).* not supported. Possible: Box, Discrete"
    )
    with pytest.raises(ConfigError, match=sentence):
        gymnasium_env.make(toy(observation_space=space))


def test_observations_of_nothing_are_refused(toy):
    with pytest.raises(ConfigError, match=r"observations in Box\(.*not supported. Possible: .* of one number at least"):
        gymnasium_env.make(toy(observation_space=spaces.Box(0, 1, (0,))))


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(2**62), spaces.MultiDiscrete([2**62, 2**62]), spaces.Box(0, 1, (4000, 4000))],
    ids=lambda space: type(space).__name__,
)
def test_observations_of_too_many_numbers_are_refused(toy, space):
    with pytest.raises(ConfigError, match="not supported. Possible: .* of one number at least and 10,000,000 at most"):
        gymnasium_env.make(toy(observation_space=space))


@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 1, (0,)), spaces.MultiDiscrete(np.zeros(0, int)), spaces.Box(-1, 1, (2, 0))], ids=repr
)
def test_actions_of_nothing_are_refused(toy, space):
    with pytest.raises(ConfigError, match=r"actions in .*not supported. Possible: .* of one number at least"):
        gymnasium_env.make(toy(action_space=space))


@pytest.mark.parametrize(
    "space",
    [spaces.Dict({"a": TWO}), spaces.Tuple((TWO, TWO)), spaces.Box(0, 9, (2,), np.int32), spaces.Text(3), [0, 1]],
    ids=lambda space: type(space).__name__,
)
def test_other_actions_are_refused(toy, space):
    with pytest.raises(ConfigError, match="Toy-v0 has actions in .* not supported. Possible: Discrete, MultiDiscrete"):
        gymnasium_env.make(toy(action_space=space))


# Copies


@pytest.mark.parametrize("name", ["CartPole-v1", "CartPole-v0", "Acrobot-v1", "Pendulum-v1"])
def test_equals_a_plain_loop(name):
    env = gymnasium_env.make(name)
    plain = [gymnasium.make(gymnasium.registry[name], disable_env_checker=True) for _ in range(3)]
    rng = np.random.default_rng(0)
    low, high = (env.spec.action.low, env.spec.action.high) if isinstance(env.spec.action, Box) else (0, 0)
    with copies_of(env, {}, {}, {}) as (copies, _):
        which = all_of(3)
        observation = copies.reset(which, seeds(0, 1, 2))
        expected = [world.reset(seed=seed)[0] for seed, world in enumerate(plain)]
        ended = []
        for _ in range(env.spec.horizon):
            np.testing.assert_array_equal(observation, np.array(expected, np.float32))
            if isinstance(env.spec.action, Discrete):
                action = rng.integers(0, env.spec.action.n, len(which)).astype(np.int32)
            else:
                action = rng.uniform(low, high, (len(which), len(low))).astype(np.float32)
            observation, reward, terminated, truncated, _ = copies.step(which, action)
            theirs = [plain[i].step(int(a) if a.ndim == 0 else a) for i, a in zip(which, action, strict=True)]
            expected = [row[0] for row in theirs]
            np.testing.assert_array_equal(reward, np.array([row[1] for row in theirs], np.float32))
            assert terminated.tolist() == [row[2] for row in theirs]
            assert truncated.tolist() == [row[3] for row in theirs]
            running = ~(terminated | truncated)
            ended += which[~running].tolist()
            which, observation, expected = which[running], observation[running], np.array(expected)[running]
            if not len(which):
                break
        assert sorted(ended) == [0, 1, 2]
        assert observation.dtype == reward.dtype == np.float32 and terminated.dtype == truncated.dtype == np.bool_


def test_a_seed_decides_an_episode_whatever_copy_it_is_in(toy):
    with copies_of(gymnasium_env.make(toy()), {}, {}, {}) as (copies, inner):
        first = copies.reset(all_of(3), seeds(5, 6, 5))
        np.testing.assert_array_equal(first[0], first[2])
        assert not np.array_equal(first[0], first[1])
        np.testing.assert_array_equal(copies.reset(np.array([1]), seeds(5))[0], first[0])
        assert [world.seeds for world in inner] == [[5], [6, 5], [5]]


def test_seeds_fit_the_generators_of_all_environments(toy):
    with copies_of(gymnasium_env.make(toy())) as (copies, [inner]):
        copies.reset(all_of(1), seeds(2**64 - 1))
        assert type(inner.seeds[0]) is int
        np.random.RandomState(inner.seeds[0])
        assert 0 <= inner.seeds[0] <= np.iinfo(np.int32).max


def test_copies_that_are_not_named_are_left_alone(toy):
    with copies_of(gymnasium_env.make(toy()), {}, {}, {}, {}) as (copies, inner):
        copies.reset(all_of(4), seeds(1, 2, 3, 4))
        before = inner[0].last
        observation, reward, _, _, _ = copies.step(np.array([3, 1]), np.array([1, 0], np.int32))
        assert [world.actions for world in inner] == [[], [0], [], [1]]
        assert inner[0].last is before
        np.testing.assert_array_equal(observation, np.array([inner[3].last, inner[1].last], np.float32))
        assert reward.shape == (2,)


def test_no_copies_named_is_no_step(toy):
    with copies_of(gymnasium_env.make(toy())) as (copies, _):
        observation, reward, _, _, _ = copies.step(all_of(0), np.zeros(0, np.int32))
        assert observation.shape == (0, 2) and reward.shape == (0,)


def test_close_closes_all(toy):
    copies = gymnasium_env.make(toy()).open([{}, {}])
    inner = [copy.env.unwrapped for copy in copies._copies]
    copies.close()
    copies.close()
    assert all(world.closed for world in inner)


# Worlds


def test_every_copy_has_its_own_arguments(toy):
    env = gymnasium_env.make(toy())
    assert env.world is None
    with copies_of(env, {"slope": 2.0}, {}, {"slope": 3}) as (copies, _):
        copies.reset(all_of(3), seeds(0, 0, 0))
        _, reward, _, _, _ = copies.step(all_of(3), np.zeros(3, np.int32))
        assert reward.tolist() == [2.0, 0.5, 3.0]


@pytest.mark.parametrize(
    ("world", "name", "kind"),
    [
        ({"size": 4.0}, "size", int),
        ({"size": 4.5}, "size", float),
        ({"slope": 4.0}, "slope", float),
        ({"on": 1.0}, "on", bool),
        ({"on": True}, "on", bool),
        ({"say": "x"}, "say", str),
        ({"text": "007"}, "text", str),
    ],
    ids=str,
)
def test_whole_numbers_become_what_the_constructor_has_by_default(toy, world, name, kind):
    with copies_of(gymnasium_env.make(toy()), world) as (_, [inner]):
        value = getattr(inner, name)
        assert type(value) is kind and value == world[name]


def test_texts_stay_texts_and_truths_are_written_as_such(toy):
    env = gymnasium_env.make(toy())
    with copies_of(env, {"text": 4}, {"text": True}) as (_, inner):
        assert [world.text for world in inner] == ["4", "true"]
    with pytest.raises(ConfigError, match="--world sets on=no, but Toy-v0 takes true or false there."):
        env.open([{"on": "no"}])


def test_arguments_may_have_the_names_of_gymnasiums_own(toy):
    class Named(Toy):
        def __init__(self, id=0, max_episode_steps=3):
            super().__init__(slope=float(max_episode_steps))

    env = gymnasium_env.make(toy(creator=Named))
    with copies_of(env, {"max_episode_steps": 7, "id": 2}) as (copies, _):
        copies.reset(all_of(1), seeds(0))
        assert copies.step(all_of(1), np.zeros(1, np.int32))[1].tolist() == [7.0]


def test_an_unknown_argument_is_answered_with_those_there_are(toy):
    env = gymnasium_env.make(toy())
    with pytest.raises(ConfigError, match="--world sets 'slop', which Toy-v0 does not take. Did you mean slope.*size"):
        env.open([{}, {"slop": 1.0}])
    with pytest.raises(ConfigError, match="does not take. It takes observation_space, action_space, say, size"):
        env.open([{"qqqqq": 1.0}])
    with pytest.raises(ConfigError, match="--world sets 'max_episode_steps'"):
        env.open([{"max_episode_steps": 1.0}])


def test_arguments_of_a_base_class_are_listed_too(toy):
    class Derived(Toy):
        def __init__(self, colour=1, **kwargs):
            super().__init__(**kwargs)

    env = gymnasium_env.make(toy(creator=Derived))
    with copies_of(env, {"size": 7.0}) as (_, [inner]):
        assert type(inner.size) is int
    with pytest.raises(ConfigError, match="Did you mean slope. It takes colour, observation_space"):
        env.open([{"slop": 1.0}])


def test_an_argument_that_is_missing_can_be_given_for_all(toy):
    class Needy(Toy):
        def __init__(self, width):
            super().__init__(spaces.Box(-1.0, 1.0, (int(width),)))

    toy(creator=Needy)
    with pytest.raises(ConfigError, match="cannot be made: TypeError: .*'width'. It takes width"):
        gymnasium_env.make("Toy-v0")
    assert gymnasium_env.make("Toy-v0", world={"width": 4.0}).spec.observation_shape == (4,)


def test_worlds_must_agree_in_observations_and_actions(toy):
    opened = []

    class Growing(Toy):
        def __init__(self, size=3, n=2):
            super().__init__(spaces.Box(-1.0, 1.0, (size,)), spaces.Discrete(n))
            opened.append(self)

    env = gymnasium_env.make(toy(creator=Growing))
    with pytest.raises(ConfigError, match=r"With size=4, Toy-v0 has observations of shape \(4,\), and not \(3,\)"):
        env.open([{}, {"size": 4}])
    with pytest.raises(ConfigError, match=r"With n=5, Toy-v0 has the actions Discrete\(n=5\), and not Discrete\(n=2\)"):
        env.open([{"n": 5}])
    assert all(world.closed for world in opened)


# Failures


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
    assert str(caught.value).endswith(f", in line {line} of test_gymnasium_env.py")


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


# What is registered, and horizons


def test_an_environment_that_is_registered_again_is_another(toy):
    old = envs.make(toy(slope=1.0))
    assert envs.make("Toy-v0") is old
    gymnasium.registry.pop("Toy-v0")
    gymnasium.register("Toy-v0", functools.partial(Toy, slope=2.0), max_episode_steps=20)
    with copies_of(envs.make("Toy-v0")) as (copies, _):
        copies.reset(all_of(1), seeds(0))
        assert copies.step(all_of(1), np.zeros(1, np.int32))[1].tolist() == [2.0]


def test_the_horizon_is_what_is_asked_for_or_what_is_registered(toy):
    name = toy(max_episode_steps=20)
    assert gymnasium_env.make(name).spec.horizon == 20
    for horizon, ends in ((4, (False, True)), (40, (True, False))):  # beyond the registered limit it terminates at 9
        env = gymnasium_env.make(name, horizon)
        assert env.spec.horizon == horizon
        with copies_of(env) as (copies, _):
            copies.reset(all_of(1), seeds(0))
            for _ in range(min(horizon, 9)):
                _, _, terminated, truncated, _ = copies.step(all_of(1), np.zeros(1, np.int32))
            assert (terminated[0], truncated[0]) == ends


def test_a_missing_horizon_is_asked_for(toy):
    name = toy(max_episode_steps=None)
    with pytest.raises(ConfigError, match="Toy-v0 has no time limit of its own; give one with --horizon"):
        gymnasium_env.make(name)
    assert gymnasium_env.make(name, 7).spec.horizon == 7


@pytest.mark.parametrize("begun", [np.zeros(2), (np.zeros(2),), (np.zeros(2), "info"), None])
def test_a_reset_that_returns_no_pair_is_explained(toy, begun):
    class Odd(Toy):
        def reset(self, *, seed=None, options=None):
            return begun

    env, words = gymnasium_env.make(toy(creator=Odd)), "TypeError: it should return a pair: the observation, and a dict"
    with copies_of(env) as (copies, _), pytest.raises(CopyFailed, match=words):
        copies.reset(all_of(1), seeds(0))


def test_a_missing_dependency_is_named_in_gymnasiums_words(toy):
    def creator():
        raise gymnasium.error.DependencyNotInstalled("Box2D is not installed, run `pip install x`")

    with pytest.raises(ConfigError, match="Toy-v0 needs a package that is not installed: Box2D is not .*`pip install"):
        gymnasium_env.make(toy(creator=creator))


def test_importing_the_module_does_not_import_gymnasium():
    code = "import sys, mfpo.envs.gymnasium_env; sys.exit('gymnasium' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_gymnasiums_advice_is_not_printed(toy, recwarn, capfd):
    class Sloppy(Toy):
        metadata = {}  # noqa: RUF012

        def __init__(self):
            super().__init__(spaces.Box(np.zeros(2, np.float64), np.ones(2), dtype=np.float32))

        def observe(self):
            return [5, 5]

    with copies_of(gymnasium_env.make(toy(creator=Sloppy))) as (copies, _):
        copies.reset(all_of(1), seeds(0))
        copies.step(all_of(1), np.zeros(1, np.int32))
    assert not recwarn.list
    assert "".join(capfd.readouterr()) == ""
