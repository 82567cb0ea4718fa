"""The Atari games against Gymnasium's vectorised ones, step by step."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv

from mfpo.blocks import Block
from mfpo.envs import atari as ours
from mfpo.errors import ConfigError, CopyFailed, MissingExtra, StepFailed, UnknownName
from mfpo.hosted import segment_sampler
from mfpo.streams import make_stream
from mfpo.types import TIME_BLOCK, Array, Compiled, Discrete, Key, Outcome

BREAKOUT, INVADERS = "ALE/Breakout-v5", "ALE/SpaceInvaders-v5"  # random games of 5 and 3 lives: 150 and 350 steps


def opened(name: str, *worlds: dict[str, float], learning: bool = False, together: bool = False) -> ours.Consoles:
    copies = ours.make(name).open(worlds, learning=learning, together=together)
    assert isinstance(copies, ours.Consoles)
    return copies


def seeds(*given: int) -> np.ndarray:
    """Ours have 64 bits, of which ALE takes the upper 31; the others must not matter."""
    return np.array([seed * 2**33 + 12345 for seed in given], np.uint64)


def theirs(name: str, *given: int, **how: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """Gymnasium's own, its first observations and the lives."""
    env = gymnasium.make_vec(name, len(given), reward_clipping=False, **how)
    assert isinstance(env, AtariVectorEnv)
    obs, info = env.reset(seed=np.array(given))
    return env, obs, info["lives"]


def actions(name: str, steps: int, n: int, seed: int = 0) -> np.ndarray:
    space = ours.make(name).spec.action
    assert isinstance(space, Discrete)
    return np.random.default_rng(seed).integers(space.n, size=(steps, n)).astype(np.int32)


def same(found: Outcome, expected: Outcome) -> bool:
    if (found.score is None) != (expected.score is None):
        return False
    pairs = [(x, y) for x, y in zip(found, expected, strict=True) if x is not None]
    return all(np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in pairs)


@pytest.mark.parametrize(("name", "n"), [(BREAKOUT, 4), ("ALE/Pong-v5", 6), ("ALE/UpNDown-v5", 6)])
def test_spec(name: str, n: int) -> None:
    spec = ours.make(name).spec
    assert spec.id == name and spec.action == Discrete(n)
    assert spec.observation_shape == (4, 84, 84) and spec.stack == 4
    assert spec.horizon == 108_000 / 4


def test_the_usual_world_is_gymnasiums() -> None:
    for name in ours.NAMES:
        assert gymnasium.spec(name).kwargs["repeat_action_probability"] == ours.World().sticky
        assert gymnasium.spec(name).kwargs["max_num_frames_per_episode"] == 4 * ours.HORIZON


def test_whole_games_are_gymnasiums() -> None:
    """Gymnasium begins a new game in the step after the end of one; ours begins it when told to."""
    env, n, ends = ours.make(BREAKOUT), 2, 0
    plain, expected, _ = theirs(BREAKOUT, *range(n))
    block = Block(env, opened(BREAKOUT, *[{}] * n), (0,), n)
    block.reset(np.ones((1, n), bool), seeds(*range(n))[None])
    assert block.now.dtype == np.uint8 and np.array_equal(block.now[0], expected)
    over, total = np.zeros((1, n), bool), np.zeros(n)
    for action in actions(BREAKOUT, 300, n):
        expected, reward, terminated, _, _ = plain.step(action)
        block.reset(over)
        found, over, truncated, score = block.step(~over, action[None])
        assert np.array_equal(block.now[0], expected)
        assert np.array_equal(found[0], reward) and np.array_equal(over[0], terminated) and not truncated.any()
        total += reward
        assert np.array_equal(score[0], np.where(terminated, total, np.nan), equal_nan=True)
        total[terminated], ends = 0, ends + terminated.sum()
    assert ends >= 2


def test_learning_goes_life_by_life() -> None:
    n, lives_lost, games, paid = 3, 0, 0, set[float]()
    plain, expected, lives = theirs(INVADERS, *range(n))
    copies, everyone = opened(INVADERS, *[{}] * n, learning=True), np.arange(n)
    assert np.array_equal(copies.reset(everyone, seeds(*range(n))), expected[:, -1])
    over, total = np.zeros(n, bool), np.zeros(n)
    for action in actions(INVADERS, 450, n):
        expected, reward, terminated, _, info = plain.step(action)
        assert np.array_equal(copies.reset(everyone[over], None), expected[over, -1])
        which = everyone[~over]
        outcome = copies.step(which, action[which])
        lost = (info["lives"] < lives) & ~over
        assert outcome.shown.dtype == np.uint8 and np.array_equal(outcome.shown, expected[which, -1])
        assert outcome.reward.dtype == np.float32 and np.array_equal(outcome.reward, np.sign(reward[which]))
        assert np.array_equal(outcome.terminated, (lost | terminated)[which]) and not outcome.truncated.any()
        total += reward
        assert outcome.score is not None and outcome.score.dtype == np.float64
        assert np.array_equal(outcome.score, np.where(terminated, total, np.nan)[which], equal_nan=True)
        ended = which[outcome.terminated & ~terminated[which]]
        assert np.array_equal(copies.reset(ended, None), expected[ended, -1])  # the game goes on
        over, lives = terminated, info["lives"]
        lives_lost, games, paid = lives_lost + len(ended), games + terminated.sum(), paid | {*reward.tolist()}
        total[terminated] = 0
    assert games >= 1 and lives_lost >= 4 and max(paid) > 1


def test_a_life_less_is_no_end_where_games_are_judged() -> None:
    judging, learning = (opened(BREAKOUT, {}, learning=learning) for learning in (False, True))
    first, ends = np.array([0]), 0
    assert np.array_equal(judging.reset(first, seeds(3)), learning.reset(first, seeds(3)))
    for action in actions(BREAKOUT, 100, 1):
        one, other = judging.step(first, action), learning.step(first, action)
        assert np.array_equal(one.shown, other.shown) and not one.terminated[0]
        ends += other.terminated[0]
        if other.terminated[0]:
            shown = learning.reset(first, None)
            assert np.array_equal(shown, other.shown) and np.array_equal(learning.reset(first, None), shown)
    assert ends >= 2
    start = judging.reset(first, None)  # a game that is cut is not gone on with
    assert not np.array_equal(start, one.shown) and judging.lives[0] == 5 and judging.total[0] == 0


@pytest.mark.parametrize("learning", [False, True])
def test_seeds_decide_everything(learning: bool) -> None:
    """Whatever happened before, among however many copies, and in the games that follow without a seed."""
    alone, among = opened(BREAKOUT, {}, learning=learning), opened(BREAKOUT, *[{}] * 3, learning=learning)
    among.reset(np.arange(3), seeds(7, 8, 9))
    for action in actions(BREAKOUT, 60, 3, seed=1):
        ended = among.step(np.arange(3), action).terminated
        among.reset(np.arange(3)[ended], None)
    here, there, games, episodes = np.array([0]), np.array([1]), 0, 0
    assert np.array_equal(alone.reset(here, seeds(4)), among.reset(there, seeds(4)))
    for action in actions(BREAKOUT, 400, 1):
        outcome = alone.step(here, action)
        assert same(outcome, among.step(there, action))
        episodes, games = episodes + outcome.terminated[0], games + alone.over[0]
        if outcome.terminated[0]:
            assert np.array_equal(alone.reset(here, None), among.reset(there, None))
    assert games >= 2 and (episodes > games) == learning


def test_together_they_do_what_they_do_alone() -> None:
    """Three and one, which is in another world; lives are lost and games begun at different times."""
    n, worlds, begun = 4, [{}, {}, {}, {"sticky": 0.0}], 0
    alone, grouped = (opened(BREAKOUT, *worlds, learning=True, together=together) for together in (False, True))
    assert len(alone.ales) == 4 and len(grouped.ales) == 2
    everyone = np.arange(n)
    for copies in (alone, grouped):
        copies.reset(everyone, seeds(*range(n)))
    for action in actions(BREAKOUT, 300, n):
        expected, found, over = alone.step(everyone, action), grouped.step(everyone, action), alone.over.copy()
        assert same(found._replace(shown=found.shown[~over]), expected._replace(shown=expected.shown[~over]))
        ended, begun = everyone[expected.terminated], begun + int(over.sum())
        assert np.array_equal(grouped.reset(ended, None), alone.reset(ended, None))
        assert np.array_equal(found.shown[ended], alone.frames[ended])  # where a game ended, that is the next one
    assert begun >= 2


def test_one_of_a_group_that_is_left_out_has_to_begin_anew() -> None:
    copies, action = opened(BREAKOUT, {}, {}, learning=True, together=True), np.array([1])
    alone = opened(BREAKOUT, {}, learning=True)
    copies.reset(np.arange(2), seeds(1, 2))
    alone.reset(np.array([0]), seeds(1))
    assert same(copies.step(np.array([0]), action), alone.step(np.array([0]), action))
    with pytest.raises(CopyFailed, match="no other has begun") as failure:
        copies.step(np.array([1]), action)
    assert failure.value.copy == 1
    copies.reset(np.array([1]), None)
    outcome = copies.step(np.arange(2), np.array([1, 1]))
    assert np.array_equal(outcome.shown[0], alone.step(np.array([0]), action).shown[0]) and copies.lives[1] == 5


def test_copies_do_not_depend_on_each_other() -> None:
    n, rng = 4, np.random.default_rng(0)
    everyone, some = (opened(BREAKOUT, *[{}] * n) for _ in range(2))
    for copies in (everyone, some):
        copies.reset(np.arange(n), seeds(*range(n)))
    for action in actions(BREAKOUT, 40, n):
        expected = everyone.step(np.arange(n), action)
        order = rng.permutation(n)
        for which in (order[:1], order[1:1], order[1:]):
            rows = Outcome(*(np.asarray(x)[which] for x in expected[:4]))
            assert same(some.step(which, action[which]), rows)
    some.reset(np.array([3, 1]), seeds(1, 2))
    rest = np.array([0, 2])
    expected = everyone.step(np.arange(n), action)
    assert same(some.step(rest, action[rest]), Outcome(*(np.asarray(x)[rest] for x in expected[:4])))


def test_worlds_differ_in_how_sticky_actions_are() -> None:
    worlds: tuple[dict[str, float], ...] = ({}, {"sticky": 0.0}, {"sticky": 1})
    copies, n, frames = opened(BREAKOUT, *worlds), len(worlds), list[np.ndarray]()
    plain = [theirs(BREAKOUT, 5, repeat_action_probability=world.get("sticky", 0.25))[0] for world in worlds]
    copies.reset(np.arange(n), seeds(*[5] * n))
    for action in actions(BREAKOUT, 60, 1):
        frames.append(copies.step(np.arange(n), np.repeat(action, n)).shown)
        assert np.array_equal(frames[-1], [each.step(action)[0][0, -1] for each in plain])
    run = np.stack(frames, axis=1)
    assert not any(np.array_equal(run[i], run[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("sticky", [-0.1, 1.1, np.nan])
def test_impossible_worlds(sticky: float) -> None:
    with pytest.raises(ConfigError, match=f"^The world of {BREAKOUT} has sticky = {sticky}, a probability: it has to "):
        opened(BREAKOUT, {}, {"sticky": sticky})


def test_what_ale_would_hang_on_or_pass_over() -> None:
    copies, everyone = opened(BREAKOUT, {}, {}), np.arange(2)
    with pytest.raises(CopyFailed, match="^its game is over, and no other has begun$") as failure:
        copies.step(everyone[1:], np.array([0]))
    assert failure.value.copy == 1
    copies.reset(everyone, seeds(1, 2))
    for wrong in (4, -1):
        with pytest.raises(CopyFailed, match=f"^it has the actions 0 to 3, but was given {wrong}$") as failure:
            copies.step(everyone, np.array([0, wrong]))
        assert failure.value.copy == 1
    ended = np.zeros(2, bool)
    while not ended.any():
        ended = copies.step(everyone, np.array([1, 1])).terminated
    with pytest.raises(CopyFailed, match="^its game is over") as failure:
        copies.step(everyone, np.array([1, 1]))
    assert failure.value.copy == np.flatnonzero(ended)[0]


class Broken:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def send(self, *_: Any) -> None:
        pass

    def recv(self) -> None:
        raise self.error

    def reset(self, *_: Any) -> None:
        raise self.error


def test_who_failed_is_said() -> None:
    copies, everyone = opened(BREAKOUT, {}, {}), np.arange(2)
    copies.reset(everyone, seeds(1, 2))
    copies.ales[1] = Broken(RuntimeError("no signal"))
    for call in (lambda: copies.reset(everyone, None), lambda: copies.step(everyone, np.array([0, 0]))):
        with pytest.raises(CopyFailed, match="^RuntimeError: no signal$") as failure:
            call()
        assert failure.value.copy == 1


def test_an_interrupted_step_leaves_nothing_to_go_on_with() -> None:
    copies, everyone = opened(BREAKOUT, {}, {}), np.arange(2)
    copies.reset(everyone, seeds(1, 2))
    copies.ales[0] = Broken(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        copies.step(everyone, np.array([0, 0]))
    with pytest.raises(CopyFailed):
        copies.reset(everyone, seeds(1, 2))
    copies.close()  # once more


@pytest.fixture
def forgetful() -> Iterator[None]:
    ours.load.cache_clear()
    yield
    ours.load.cache_clear()


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("package", ["ale_py", "gymnasium"])
def test_without_a_package(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"^{BREAKOUT} needs an optional package; .* 'mfpo\[atari\]'$"):
        ours.make(BREAKOUT)


@pytest.mark.usefixtures("forgetful")
def test_without_a_rom(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=f"^The ROM of {BREAKOUT} could not be read: .*breakout.bin.* ALE_ROMS_DIR"):
        ours.make(BREAKOUT)
    (tmp_path / "breakout.bin").write_bytes(b"another game")
    with pytest.raises(ConfigError, match=r"breakout.bin does not match .* unset ALE_ROMS_DIR"):
        ours.make(BREAKOUT)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["ALE/Breakuot-v5", "ALE/breakout-v5", "ALE/Breakout-v4"])
def test_unknown_games(name: str) -> None:
    with pytest.raises(UnknownName, match=f"^ALE has no game called '{name}'. Did you mean ALE/Breakout-v5"):
        ours.make(name)


QUIET = """
import sys
import mfpo.envs.atari as ours
assert not {"ale_py", "gymnasium"} & set(sys.modules)
ours.make("ALE/Pong-v5").open([{}]).close()
"""


def test_nothing_is_printed_or_imported_early(tmp_path: Path) -> None:
    where = {"PYTHONPATH": str(Path(ours.__file__).parents[2]), "ALE_ROMS_DIR": str(Path(roms.__file__).parent)}
    command, env = [sys.executable, "-c", QUIET], {**os.environ, **where}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def watch(actor: Array, obs: Array, key: Key) -> tuple[Array, Array]:
    """An action that depends on all four frames, and on chance."""
    seen = obs.astype(jnp.int32).sum(axis=(1, 2)) if obs.shape[0] == 4 else obs.astype(jnp.int32).sum(axis=(0, 1))
    action = (jnp.dot(seen, jnp.array([1, 3, 5, 7])) + jax.random.randint(key, (), 0, 4)) % 4
    return action, action + actor


def ready(actor: Array, frame: Array) -> Array:
    return frame[..., None]


@pytest.mark.parametrize("horizon", [ours.HORIZON, 30])
def test_a_program_samples_what_the_host_does(horizon: int) -> None:
    """Lives, games, the seams between segments; agents in different worlds; and, near the horizon, both in turns."""
    agents, columns, length, programs, ends, games, cut = 2, 2, 9, 0, 0, 0, 0
    env = ours.make(BREAKOUT)
    env = env._replace(spec=env.spec._replace(horizon=horizon), worlds=((), (("sticky", 0.0),)))

    def counted(copies: ours.Consoles) -> Compiled:
        nonlocal programs
        programs += 1
        return copies.compiled()

    samplers = [
        segment_sampler(env._replace(compiled=compiled), watch, agents, columns, length, jax.devices()[:1], ready)
        for compiled in (counted, None)
    ]
    keys = jax.random.split(jax.random.key(0), agents)
    for step in range(40):
        how = jnp.arange(agents), keys, jnp.arange(agents), jnp.int32(step)
        found, expected = (sample(*how) for sample in samplers)
        ended, goes_on = expected.terminated, ~np.asarray(expected.terminated[:, -1])
        for name, x, y in zip(found._fields, found, expected, strict=True):
            assert x.shape == y.shape and x.dtype == y.dtype, name
            if name == "last_obs":  # which means nothing where an episode has ended
                x, y = x[goes_on], y[goes_on]
            assert np.array_equal(x, y, equal_nan=x.dtype.kind == "f"), (step, name)
        ends, games = ends + ended.sum(), games + (~np.isnan(expected.score)).sum()
        cut += expected.truncated[:, :-1].sum()
    assert ends > 20 and games
    assert (programs == 40 and not cut) if horizon == ours.HORIZON else (5 < programs < 35 and cut > 5)


def test_a_failure_within_a_program_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    env = ours.make(BREAKOUT)
    block = Block(env, opened(BREAKOUT, {}, learning=True, together=True), (3,), 1)  # which nobody has reset
    block.shown = [np.zeros((1, 1, 84, 84), np.uint8) for _ in range(4)]
    stream = make_stream(env, watch, ready, 5)
    with pytest.raises(StepFailed, match=f"^The environment {BREAKOUT} of agent 3 failed in step 1 .*before reset"):
        stream(block, jnp.zeros(1, jnp.int32), jnp.zeros((1, 1, 2), jnp.uint32))
    assert "before reset" in capfd.readouterr().err  # ALE's own


def test_an_ale_that_programs_cannot_call_is_driven_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    import ale_py

    assert ours.make(BREAKOUT).compiled is not None
    ours.programmable.cache_clear()
    monkeypatch.setattr(ale_py, "_ale_py", object())
    assert ours.make(BREAKOUT).compiled is None
    ours.programmable.cache_clear()


def test_a_segment() -> None:
    def act(actor: Array, obs: Array, key: Key) -> tuple[Array, Array]:
        action = jax.random.randint(key, (), 0, 4)
        return action, action + actor

    agents, columns = 2, 2
    sample = segment_sampler(ours.make(BREAKOUT), act, agents, columns, TIME_BLOCK)
    keys = jax.random.split(jax.random.key(0), agents)
    batch = sample(jnp.zeros(agents, jnp.int32), keys, jnp.arange(agents), jnp.int32(0))
    assert batch.obs.shape == (agents, TIME_BLOCK + 3, columns, 84, 84) and batch.obs.dtype == np.uint8
    assert batch.last_obs.shape == (agents, columns, 4, 84, 84)
    assert np.isin(batch.reward, [-1, 0, 1]).all() and np.asarray(batch.live).all()
    assert np.asarray(batch.terminated).any()  # a life
    assert np.isnan(batch.score).all()  # but no game
