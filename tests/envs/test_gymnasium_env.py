"""Any environment of Gymnasium: copies, worlds, horizons."""

import functools
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tests.envs.toys import Toy, all_of, copies_of, seeds

from mfpo import envs
from mfpo.envs import gymnasium_env
from mfpo.errors import ConfigError, CopyFailed
from mfpo.types import Box, Discrete

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
