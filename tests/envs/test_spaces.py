"""Spaces of Gymnasium in our terms."""

import numpy as np
import pytest
from gymnasium import spaces
from tests.envs.toys import ANY_BOX, INF, TWO, Toy, all_of, copies_of, seeds

from mfpo.envs import gymnasium_env
from mfpo.errors import ConfigError
from mfpo.types import Box, Discrete, MultiDiscrete

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
