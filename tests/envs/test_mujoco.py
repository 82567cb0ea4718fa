"""The MuJoCo tasks against Gymnasium's, step by step."""

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
from mujoco.batch import Batch, SimulationError

from mfpo.blocks import Block
from mfpo.envs import mujoco as ours
from mfpo.errors import ConfigError, CopyFailed
from mfpo.types import Box

ENDS = (
    "Hopper-v5",
    "Walker2d-v5",
    "InvertedPendulum-v5",
    "Ant-v5",
    "Humanoid-v5",
)  # tasks with an end; random actions reach it soon
SEEDS = (0, 1, 12345, 2**64 - 1)
STEPS = 300  # compared per task


@pytest.fixture(params=ours.NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def theirs(name: str) -> Iterator[Any]:
    ours.silence()
    env = gymnasium.make(name, disable_env_checker=True)
    yield env
    env.close()


def opened(name: str, *worlds: dict[str, float]) -> ours.Simulations:
    copies = ours.make(name).open(worlds)
    assert isinstance(copies, ours.Simulations)
    return copies


def actions(name: str, n: int, seed: int = 0, steps: int = STEPS) -> np.ndarray:
    """[steps, n, dimensions], uniform."""
    space = ours.make(name).spec.action
    assert isinstance(space, Box)
    return np.random.default_rng(seed).uniform(space.low, space.high, (steps, n, len(space.low))).astype(np.float32)


def seeds(*given: int) -> np.ndarray:
    return np.array(given, np.uint64)


def same(found: Any, expected: Any) -> bool:
    """Equal but for the rounding to float32, in which Gymnasium squares actions, too."""
    return bool(np.allclose(found, expected, rtol=2e-7, atol=5e-7))


def one(result: Any) -> tuple[np.ndarray, float, bool, bool]:
    obs, reward, terminated, truncated = result
    assert obs.dtype == reward.dtype == np.float32 and terminated.dtype == truncated.dtype == np.bool_
    assert obs.shape[:1] == reward.shape == terminated.shape == truncated.shape == (1,)
    return obs[0], reward[0], terminated[0], truncated[0]


FIRST = np.array([0])


def test_spec_is_gymnasiums(name: str, theirs: Any) -> None:
    spec = ours.make(name).spec
    assert spec.id == name
    assert spec.horizon == theirs.spec.max_episode_steps
    assert spec.observation_shape == theirs.observation_space.shape
    assert isinstance(spec.action, Box)
    assert spec.action.low == tuple(theirs.action_space.low.tolist())
    assert spec.action.high == tuple(theirs.action_space.high.tolist())


def test_every_name_has_a_task() -> None:
    assert list(ours.TASKS) == list(ours.NAMES)


def test_the_usual_world_is_gymnasiums(name: str, theirs: Any) -> None:
    model, expected = ours.build(name, ours.World()), theirs.unwrapped.model
    for field in ("body_mass", "body_inertia", "geom_friction", "dof_damping", "dof_invweight0", "body_subtreemass"):
        assert np.array_equal(getattr(model, field), getattr(expected, field)), field
    assert np.array_equal(model.opt.gravity, expected.opt.gravity)


def test_episodes_begin_as_gymnasiums(name: str, theirs: Any) -> None:
    copies = opened(name, *[{}] * len(SEEDS))
    copies.reset(np.arange(len(SEEDS)), seeds(*SEEDS))
    copies.step(np.arange(len(SEEDS)), actions(name, len(SEEDS))[0])  # so that there is something to forget
    obs = copies.reset(np.arange(len(SEEDS)), seeds(*SEEDS))
    assert obs.dtype == np.float32
    for i, seed in enumerate(SEEDS):
        expected, _ = theirs.reset(seed=seed)
        assert np.array_equal(obs[i], expected.astype(np.float32))
        assert np.array_equal(copies.qpos[i], theirs.unwrapped.data.qpos)
        assert np.array_equal(copies.qvel[i], theirs.unwrapped.data.qvel)


def test_every_step_is_gymnasiums(name: str, theirs: Any) -> None:
    """Theirs is set to where ours is before every step; episodes follow one another."""
    copies, ends = opened(name, {}), 0
    copies.reset(FIRST, seeds(0))
    theirs.reset(seed=0)
    for action in actions(name, 1):
        theirs.unwrapped.set_state(copies.qpos[0], copies.qvel[0])
        if copies.bodies:  # where they were in the last substep, as `set_state` puts them where they are
            getattr(theirs.unwrapped.data, copies.bodies.contacts.place)[:] = copies.bodies.position[0]
        expected = theirs.unwrapped.step(action[0])
        obs, reward, terminated, truncated = one(copies.step(FIRST, action)[:4])
        assert same(obs, expected[0]) and same(reward, expected[1])
        assert terminated == expected[2] and not truncated
        if terminated:
            ends += 1
            copies.reset(FIRST, seeds(ends))
    assert (ends >= 3) == (name in ENDS)


def test_a_free_run_is_gymnasiums_bit_for_bit(name: str, theirs: Any) -> None:
    copies, seed = opened(name, {}), 7
    copies.reset(FIRST, seeds(seed))
    theirs.reset(seed=seed)
    for action in actions(name, 1):
        expected = theirs.unwrapped.step(action[0])
        obs, reward, terminated, _ = one(copies.step(FIRST, action)[:4])
        assert np.array_equal(obs, expected[0].astype(np.float32)) and same(reward, expected[1])
        assert np.array_equal(copies.qpos[0], theirs.unwrapped.data.qpos)
        assert terminated == expected[2]
        if terminated:
            seed += 1
            copies.reset(FIRST, seeds(seed))
            theirs.reset(seed=seed)


def test_episodes_end_when_gymnasium_ends_them(name: str, theirs: Any) -> None:
    """Theirs has its time limit; episodes follow one another, and only the first has a seed."""
    block, everyone = Block(ours.make(name), opened(name, {}), (0,), 1), np.ones((1, 1), bool)
    block.reset(everyone, seeds(11)[None])
    theirs.reset(seed=11)
    cut, ends = list[int](), 0
    for h, action in enumerate(actions(name, 1, steps=1100)):
        expected = theirs.step(action[0])
        reward, terminated, truncated, _ = block.step(everyone, action[None])
        assert np.array_equal(block.now[0, 0], expected[0].astype(np.float32)) and same(reward[0, 0], expected[1])
        assert (terminated[0, 0], truncated[0, 0]) == expected[2:4], h
        if terminated or truncated:
            cut, ends = cut + [h] * bool(truncated), ends + bool(terminated)
            block.reset(everyone)
            assert np.array_equal(block.now[0, 0], theirs.reset()[0].astype(np.float32))
    assert (cut, ends > 0) == (([], True) if name in ENDS else ([999], False))


@pytest.mark.parametrize("name", ENDS)
def test_both_sides_of_every_bound_of_health(name: str, theirs: Any) -> None:
    """States beyond what random actions reach: high, low, tilted, fast."""
    copies, rng, healthy = opened(name, {}), np.random.default_rng(0), 0
    spread = {"Hopper-v5": 0.25, "InvertedPendulum-v5": 0.2, "Ant-v5": 0.6, "Humanoid-v5": 0.5}.get(name, 1.0)
    fast = 3.0 if name == "Humanoid-v5" else 30.0  # faster, some of them diverge, and Gymnasium's begins anew
    for action in actions(name, 1):
        copies.reset(FIRST, seeds(0))
        theirs.reset(seed=0)
        copies.qpos[0, 1:3] += rng.uniform(-spread, spread, len(copies.qpos[0, 1:3]))
        copies.qvel[0] += rng.normal(size=copies.qvel.shape[1]) * rng.choice([0.1, fast])
        theirs.unwrapped.set_state(copies.qpos[0], copies.qvel[0])
        expected = theirs.unwrapped.step(action[0])
        obs, reward, terminated, _ = one(copies.step(FIRST, action)[:4])
        assert same(obs, expected[0]) and same(reward, expected[1])
        assert terminated == expected[2]
        healthy += not terminated
    assert STEPS / 20 < healthy < STEPS * 19 / 20


def test_an_action_out_of_bounds_costs_as_in_gymnasium(name: str, theirs: Any) -> None:
    copies, action = opened(name, {}), 1.5 * actions(name, 1)[0]
    copies.reset(FIRST, seeds(3))
    theirs.reset(seed=3)
    obs, reward, _, _ = one(copies.step(FIRST, action)[:4])
    expected = theirs.unwrapped.step(action[0])
    assert same(obs, expected[0]) and same(reward, expected[1])


def test_copies_do_not_depend_on_each_other(name: str) -> None:
    """Some of the copies against all of them at once."""
    n = 16
    everyone, some, rng = opened(name, *[{}] * n), opened(name, *[{}] * n), np.random.default_rng(0)
    for copies in (everyone, some):
        copies.reset(np.arange(n), np.arange(n, dtype=np.uint64))
    for action in actions(name, n)[:30]:
        expected = everyone.step(np.arange(n), action)[:4]
        order = rng.permutation(n)
        for which in map(np.sort, (order[:7], order[7:8], order[8:8], order[8:])):
            before = some.batch.state.copy()
            for found, full in zip(some.step(which, action[which])[:4], expected, strict=True):
                assert np.array_equal(found, full[which])
            others = np.setdiff1d(np.arange(n), which)
            assert np.array_equal(some.batch.state[others], before[others])
    before = some.batch.state.copy()
    some.reset(np.array([2, 4]), seeds(0, 1))
    others = np.setdiff1d(np.arange(n), [2, 4])
    assert np.array_equal(some.batch.state[others], before[others])
    fresh = opened(name, {}, {})
    fresh.reset(np.arange(2), seeds(0, 1))
    assert np.array_equal(some.batch.state[[2, 4]], fresh.batch.state)


WORLDS = ({}, {"gravity": 15.0}, {"mass": 1.7}, {"friction": 0.3}, {"damping": 4.0}, {"gravity": 0.0, "mass": 0.6})


def change(model: Any, world: dict[str, float]) -> None:
    """What a user of Gymnasium would do."""
    if "gravity" in world:
        model.opt.gravity[:] = 0.0, 0.0, -world["gravity"]
    model.body_mass[:] *= world.get("mass", 1.0)
    model.body_inertia[:] *= world.get("mass", 1.0)
    model.geom_friction[:, 0] *= world.get("friction", 1.0)
    model.dof_damping[:] *= world.get("damping", 1.0)
    mujoco.mj_setConst(model, mujoco.MjData(model))


def test_worlds_are_those_of_a_changed_model(name: str) -> None:
    copies, everyone = opened(name, *WORLDS), np.arange(len(WORLDS))
    copies.reset(everyone, seeds(*[5] * len(WORLDS)))
    found = np.array([copies.step(everyone, np.tile(a, (len(WORLDS), 1)))[0] for a in actions(name, 1)[:100]])
    for i, world in enumerate(WORLDS):
        theirs = gymnasium.make(name, disable_env_checker=True)
        change(theirs.unwrapped.model, world)
        theirs.reset(seed=5)
        expected = np.array([theirs.unwrapped.step(a[0])[0] for a in actions(name, 1)[:100]])
        theirs.close()
        assert np.array_equal(found[:, i], expected.astype(np.float32)), world
    differs = {key: not np.array_equal(found[:, 0], found[:, i]) for i, w in enumerate(WORLDS) for key in w}
    missing = {"Swimmer-v5": {"friction", "damping"}, "InvertedPendulum-v5": {"friction"}}.get(name, set())
    assert {key for key, yes in differs.items() if not yes} == missing


def test_equal_worlds_share_a_model() -> None:
    models = opened("Hopper-v5", {}, {"mass": 2.0}, {"gravity": 9.81}, {"mass": 2}).batch.models
    assert models[0] is models[2] and models[1] is models[3] and models[0] is not models[1]
    assert np.array_equal(models[1].body_mass, 2 * models[0].body_mass)


@pytest.mark.parametrize("key", ours.World._fields)
@pytest.mark.parametrize("value", [-1.0, 0.0, np.inf, np.nan])
def test_impossible_worlds(key: str, value: float) -> None:
    if key == "gravity" and value == 0:
        opened("Hopper-v5", {key: value}).close()
        return
    with pytest.raises(ConfigError, match=f"^The world of Hopper-v5 has {key} = {value}, which has to be finite and "):
        opened("Hopper-v5", {}, {key: value})


def test_a_diverged_copy_is_returned_as_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is printed, and the other copy goes on."""
    monkeypatch.chdir(tmp_path)
    copies, alone = opened(name, {}, {}), opened(name, {})
    copies.reset(np.arange(2), seeds(0, 1))
    alone.reset(FIRST, seeds(1))
    copies.qvel[0] = 1e9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for action in actions(name, 2)[:3]:
            obs, reward, terminated, *_ = copies.step(np.arange(2), action)
            expected = alone.step(FIRST, action[1:])
            assert np.array_equal(obs[1:], expected[0]) and np.array_equal(reward[1:], expected[1])
    assert not (np.abs(obs[0]) < 1e6).all()  # MuJoCo itself would have put it back to the start
    assert terminated[0] == (name in ENDS)
    for action in actions(name, 2)[:3]:
        assert np.array_equal(copies.reset(FIRST, seeds(2)), alone.reset(FIRST, seeds(2)))
        assert np.array_equal(copies.step(FIRST, action[:1])[0], alone.step(FIRST, action[:1])[0])
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_who_failed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise SimulationError(np.array([2, 3]), "stack overflow", 4)

    copies = opened("Hopper-v5", *[{}] * 4)
    copies.reset(np.arange(4), seeds(*range(4)))
    monkeypatch.setattr(Batch, "step", fail)
    with pytest.raises(CopyFailed) as failure:
        copies.step(np.arange(4), actions("Hopper-v5", 4)[0])
    assert failure.value.copy == 2


def test_close_twice() -> None:
    copies = opened("Hopper-v5", {})
    copies.close()
    copies.close()


QUIET = """
import sys
import mfpo.envs.mujoco as ours
assert not {"mujoco", "gymnasium"} & set(sys.modules)
for name in ours.NAMES:
    ours.make(name).open([{}, {"mass": 2.0}]).close()
assert "gymnasium" not in sys.modules
"""

WITHOUT = """
import sys
sys.modules[{package!r}] = None
import mfpo.envs.mujoco as ours
from mfpo.errors import MissingExtra
try:
    ours.make("Hopper-v5")
except MissingExtra as error:
    assert "Hopper-v5" in str(error) and "mfpo[mujoco]" in str(error)
else:
    raise AssertionError
"""


@pytest.mark.parametrize("script", [QUIET, WITHOUT.format(package="mujoco"), WITHOUT.format(package="gymnasium")])
def test_nothing_is_printed_written_or_imported_early(script: str, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(ours.__file__).parents[2])}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []
