"""The hosted sampler on a made-up world whose episodes are known in advance."""

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo.errors import CopyFailed, StepFailed
from mfpo.hosted import EVALUATION_COPIES, episode_sampler, hosted_scores, segment_sampler
from mfpo.rollout import pure_sampler
from mfpo.types import TIME_BLOCK, Array, Box, EnvSpec, HostedEnv, Key, Outcome, PureEnv, Trajectories, World

COLUMNS = 3


class Clocks:
    """An episode lasts as many steps as the action says; step number h is worth h. Shows (seed, elapsed).

    Of those that are stepped together, one that is left out has to be reset before it is stepped again.
    """

    def __init__(
        self, worlds: Sequence[World], fail: Callable[[int, int], str], steps: list[int], together: bool
    ) -> None:
        self.worlds, self.fail, self.steps, self.together = worlds, fail, steps, together
        self.left_out = np.zeros(len(worlds), bool)
        self.elapsed, self.seeds = np.zeros(len(worlds), int), np.zeros(len(worlds))
        self.closed = False

    def _show(self, which: np.ndarray) -> np.ndarray:
        return np.stack([self.seeds[which], self.elapsed[which]], axis=1).astype(np.float32)

    def reset(self, which: np.ndarray, seeds: np.ndarray | None) -> np.ndarray:
        self.elapsed[which], self.left_out[which] = 0, False
        self.seeds[which] = self.seeds[which] + 1 if seeds is None else seeds % np.uint64(1000)
        return self._show(which)

    def step(self, which: np.ndarray, action: np.ndarray) -> Any:
        assert len(which), "nobody is stepped in vain"
        assert not self.left_out[which].any(), "who was left out was reset"
        self.left_out |= self.together
        self.left_out[which] = False
        self.elapsed[which] += 1
        self.steps[0] += len(which)
        obs, reward = self._show(which), self.elapsed[which].astype(np.float32)
        for row, copy in enumerate(which):
            how = self.fail(copy, self.elapsed[copy])
            if how == "raise":
                raise CopyFailed(copy, "ValueError: no such gear")
            if how == "obs":
                obs[row, 1] = np.nan
            if how == "reward":
                reward[row] = np.inf
        bonus = np.array([self.worlds[copy].get("bonus", 0.0) for copy in which], np.float32)
        return Outcome(obs, reward + bonus, self.elapsed[which] >= action[:, 0], np.zeros(len(which), bool))

    def close(self) -> None:
        self.closed = True


def clocks(
    horizon: int, fail: Callable[[int, int], str] = lambda copy, h: "", worlds: tuple[Any, ...] = ()
) -> tuple[HostedEnv, list[int], list[Clocks]]:
    """The world, a counter of the steps taken in it, and what was opened."""
    steps, opened = [0], []

    def open_(worlds: Sequence[World], learning: bool = False, together: bool = False) -> Clocks:
        opened.append(Clocks(worlds, fail, steps, together))
        return opened[-1]

    spec = EnvSpec("Clocks", (2,), Box((0.0,), (1000.0,)), horizon)
    return HostedEnv(spec, None, open_, worlds=worlds), steps, opened


def act(actor: Array, obs: Array, key: Key) -> tuple[Array, Array]:
    """The actor is the wanted length; what is remembered is another number, as for a squashed policy."""
    return actor[None], jnp.stack([actor * 10, jax.random.uniform(key)])


def keys_of(ids: Sequence[int]) -> Key:
    return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(5), i))(jnp.array(ids))


def sample(env: HostedEnv, wanted: list[float], segment: int = 0, ids: list[int] | None = None) -> Trajectories:
    who = list(range(len(wanted))) if ids is None else ids
    agents = max(who) + 1
    episodes = episode_sampler(env, act, agents, COLUMNS)
    run = segment_sampler(env, act, agents, COLUMNS, segment) if segment else episodes
    return run(jnp.array(wanted), keys_of(who), jnp.array(who), jnp.int32(0))


def test_whole_episodes_are_those_of_the_pure_sampler() -> None:
    """The same world as pure functions, with the same keys, gives the same batch but for what the seed draws."""

    def step(state: Array, action: Array, key: Key) -> tuple[Array, Array, Array]:
        return state + 1, (state + 1).astype(jnp.float32), state + 1 >= action[0]

    env, _, _ = clocks(horizon=60)
    pure = PureEnv(env.spec, lambda key: jnp.int32(0), lambda s: jnp.stack([0.0, s]).astype(jnp.float32), step)
    wanted = [1.0, 4.0, 60.0, 99.0]
    ours = sample(env, wanted)
    theirs = jax.jit(pure_sampler(pure, act, COLUMNS))(jnp.array(wanted), keys_of(range(4)), jnp.arange(4))
    live = ours.live
    assert np.array_equal(ours.obs[..., 1] * live, np.asarray(theirs.obs)[..., 1] * live)
    assert np.array_equal(ours.action * live[..., None], np.asarray(theirs.action) * live[..., None])
    for name in ("reward", "live", "terminated", "truncated", "length", "score"):
        assert np.array_equal(getattr(ours, name), np.asarray(getattr(theirs, name))), name
    assert np.array_equal(ours.last_obs[..., 1], np.asarray(theirs.last_obs)[..., 1])


def test_segments_of_agents_that_are_sampled_for_at_once_are_stepped_together_and_episodes_are_not() -> None:
    env, _, opened = clocks(horizon=20)
    sample(env, [5.0, 7.0], segment=TIME_BLOCK)
    sample(env, [5.0, 7.0])
    assert [(copies.together, len(copies.worlds)) for copies in opened] == [(True, 2 * COLUMNS), (False, 2 * COLUMNS)]


def test_copies_are_opened_once_for_the_agents_that_are_sampled_for_at_once() -> None:
    env, _, opened = clocks(horizon=20)
    run = segment_sampler(env, act, 2, COLUMNS, TIME_BLOCK)
    for who in ([0], [1], [0], [1]):
        run(jnp.ones(1), keys_of(who), jnp.array(who), jnp.int32(0))
    assert [len(copies.worlds) for copies in opened] == [COLUMNS, COLUMNS]


def test_a_finished_episode_costs_nothing() -> None:
    env, steps, _ = clocks(horizon=50)
    sample(env, [2.0, 7.0])
    assert steps == [COLUMNS * (2 + 7)]


def test_few_running_episodes_are_gathered_before_the_policy_sees_them() -> None:
    """Columns of different lengths, so that ever fewer run; what each of them does must not change by that."""

    env, _, _ = clocks(horizon=50)
    run = episode_sampler(env, by_seed, 2, 16)(jnp.zeros(2), keys_of([0, 1]), jnp.arange(2), jnp.int32(0))
    lengths = run.live.sum(axis=1)
    assert len(np.unique(lengths)) > 10
    assert np.array_equal(lengths, 1 + run.obs[:, 0, :, 0] % 40)
    assert np.array_equal(run.action[..., 0] * run.live, run.obs[..., 0] * run.live)
    draws = run.action[..., 1][run.live]
    assert len(np.unique(draws)) == len(draws)


def test_a_segment_holds_one_episode_after_the_other() -> None:
    env, _, _ = clocks(horizon=1000)
    run = sample(env, [20.0], segment=TIME_BLOCK)
    h = np.arange(TIME_BLOCK)
    for d in range(COLUMNS):
        assert run.live[0, :, d].all()
        assert np.array_equal(run.reward[0, :, d], h % 20 + 1)
        assert np.array_equal(run.obs[0, :, d, 1], h % 20)
        assert np.array_equal(run.terminated[0, :, d], h % 20 == 19)
        assert np.array_equal(run.truncated[0, :, d], h == TIME_BLOCK - 1)  # cut in the middle of the third
        seeds = run.obs[0, :, d, 0]
        assert len(np.unique(seeds)) == 3 and np.array_equal(seeds, np.repeat(seeds[::20][:3], 20)[:TIME_BLOCK])
    assert run.last_obs[0, :, 1].tolist() == [10.0] * COLUMNS
    assert run.length.tolist() == [TIME_BLOCK]
    assert run.score[0].tolist() == [sum(range(1, 21))] * COLUMNS  # of the two whole ones


def test_within_a_segment_the_slot_after_a_truncated_step_shows_what_it_led_to() -> None:
    env, _, _ = clocks(horizon=10)
    run = sample(env, [1000.0], segment=TIME_BLOCK)
    h = np.arange(TIME_BLOCK)
    waiting = h % 11 == 10
    for d in range(COLUMNS):
        assert np.array_equal(run.live[0, :, d], ~waiting)
        assert np.array_equal(run.truncated[0, :, d], (h % 11 == 9) | (h == TIME_BLOCK - 1))
        assert np.array_equal(run.obs[0, :, d, 1], h % 11)
        assert not run.reward[0, waiting, d].any() and not run.terminated.any()
        assert np.array_equal(run.obs[0, waiting, d, 0], run.obs[0, h[waiting] - 1, d, 0])  # still that episode
    assert run.length.tolist() == [TIME_BLOCK]  # the last step counts, however many slots before it are not live


@pytest.mark.parametrize("horizon", [20, 33, 1000])
def test_the_segments_of_a_round_are_one_stream(horizon: int) -> None:
    """Two segments show what one of twice the length shows, but for the slot a truncation at the seam does not need."""
    short, long = (segment_sampler(clocks(horizon)[0], act, 1, COLUMNS, n * TIME_BLOCK) for n in (1, 2))
    wanted, keys, ids = jnp.array([30.0]), keys_of([0]), jnp.arange(1)
    whole = long(wanted, keys, ids, 0)
    parts = [short(wanted, keys, ids, step) for step in (0, 1)]
    for name in ("obs", "reward", "live", "terminated"):
        joined = np.concatenate([getattr(part, name)[0] for part in parts])
        assert np.array_equal(joined, getattr(whole, name)[0]), name
    assert parts[0].truncated[0, -1].all()
    assert np.array_equal(parts[0].last_obs[0], parts[1].obs[0, 0]) == (not parts[0].terminated[0, -1].any())
    again = short(wanted, keys, ids, 0)  # the next round begins anew
    assert np.array_equal(again.obs, parts[0].obs)
    scores = np.nanmean([part.score for part in parts], axis=0)
    assert np.allclose(scores, whole.score)


def test_a_segment_in_which_nothing_ended_has_no_score() -> None:
    env, _, _ = clocks(horizon=1000)
    assert np.isnan(sample(env, [500.0], segment=TIME_BLOCK).score).all()


def test_an_agents_episodes_do_not_depend_on_the_block_it_is_in() -> None:
    env, _, _ = clocks(horizon=30)
    everyone, alone = sample(env, [3.0, 9.0, 5.0]), sample(env, [5.0], ids=[2])
    live = alone.live[0]
    for name in ("obs", "action"):
        assert np.array_equal(getattr(everyone, name)[2][live], getattr(alone, name)[0][live]), name
    for name in ("reward", "live", "terminated", "truncated", "last_obs", "length", "score"):
        assert np.array_equal(getattr(everyone, name)[2], getattr(alone, name)[0]), name


def test_every_agent_lives_in_its_own_world() -> None:
    env, _, opened = clocks(horizon=30, worlds=((("bonus", 0.5),), (("bonus", 7.0),)))
    run = sample(env, [1.0, 1.0])
    assert run.reward[:, 0].tolist() == [[1.5] * COLUMNS, [8.0] * COLUMNS]
    assert [world["bonus"] for world in opened[0].worlds] == [0.5] * COLUMNS + [7.0] * COLUMNS
    assert hosted_scores(env, act, jnp.float32(1.0), jax.random.key(0), 1, 4).tolist() == [8.0] * 4


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", "failed in step 4 of its episode: ValueError: no such gear"),
        ("obs", "failed in step 4 of its episode: it gave an observation that is not finite in 32 bits"),
        ("reward", "failed in step 4 of its episode: it gave a reward that is not finite in 32 bits"),
    ],
)
def test_a_failure_names_the_agent_and_the_step(how: str, words: str) -> None:
    env, _, _ = clocks(horizon=30, fail=lambda copy, h: how if (copy, h) == (COLUMNS + 1, 4) else "")
    with pytest.raises(StepFailed, match=f"^The environment Clocks of agent 1 {words}$"):
        sample(env, [9.0, 9.0])


def test_a_failure_while_judging_names_the_agent_whose_world_it_is() -> None:
    worlds = tuple((("bonus", float(agent)),) for agent in range(3))
    env, _, opened = clocks(horizon=30, fail=lambda copy, h: "raise" if h == 4 else "", worlds=worlds)
    with pytest.raises(StepFailed, match="^The environment Clocks of agent 2 failed in step 4 of its episode"):
        hosted_scores(env, act, jnp.float32(9.0), jax.random.key(0), 2, 1)
    assert [world["bonus"] for world in opened[0].worlds] == [2.0]


@pytest.mark.parametrize("make", [episode_sampler, partial(segment_sampler, length=TIME_BLOCK)])
def test_copies_are_closed_when_nobody_can_sample_any_more(make: Callable[..., Any]) -> None:
    env, _, opened = clocks(horizon=30)
    sampler = make(env._replace(parallel=True), act, 2, 8, devices=jax.devices() * 2)
    sampler(jnp.full(2, 3.0), keys_of(range(2)), jnp.arange(2), jnp.int32(0))
    assert [copies.closed for copies in opened] == [False, False]
    del sampler
    gc.collect()
    assert [copies.closed for copies in opened] == [True, True]


@pytest.mark.parametrize("episodes", [1, EVALUATION_COPIES, 3 * EVALUATION_COPIES + 5])
def test_evaluation_plays_every_episode_to_its_end(episodes: int) -> None:
    def by_seed(actor: Array, obs: Array, key: Key) -> tuple[Array, Array]:
        return (1 + obs[:1] % 7,) * 2

    env, steps, opened = clocks(horizon=5)
    scores = hosted_scores(env, by_seed, jnp.float32(0.0), jax.random.key(0), 0, episodes)
    assert scores.shape == (episodes,) and opened[0].closed
    assert set(scores) <= {1.0, 3.0, 6.0, 10.0, 15.0}
    lengths = np.sqrt(8 * scores + 1) / 2 - 0.5  # of an episode that is worth 1 + 2 + ... + length
    assert steps == [lengths.sum()]
    if episodes > 20:
        assert len(set(scores)) > 3


def by_seed(actor: Array, obs: Array, key: Key) -> tuple[Array, Array]:
    """How long an episode lasts is in its seed."""
    return (1 + obs[:1] % 40, jnp.stack([obs[0], jax.random.uniform(key)]))


@pytest.mark.parametrize("segment", [0, TIME_BLOCK])
@pytest.mark.parametrize(("devices", "ids"), [(3, (0, 1, 2)), (2, (0, 1, 2)), (3, (0, 2)), (3, (1,))])
def test_strips_make_the_same_batch_as_the_whole(segment: int, devices: int, ids: tuple[int, ...]) -> None:
    """Three agents in strips of one agent each, or of half of the columns of all; some or all of them sample."""
    bonuses = tuple((("bonus", float(agent)),) for agent in range(3))

    def run(parallel: bool) -> tuple[list[Trajectories], list[int]]:
        env, _, opened = clocks(horizon=30, worlds=bonuses)
        make = partial(segment_sampler, length=segment) if segment else episode_sampler
        sampler = make(env._replace(parallel=parallel), by_seed, 3, 8, devices=jax.devices() * devices)
        steps = [sampler(jnp.zeros(len(ids)), keys_of(ids), jnp.array(ids), jnp.int32(step)) for step in range(2)]
        return steps, [len(copies.worlds) for copies in opened]

    (whole, one), (joined, several) = run(False), run(True)
    strips = min(devices, len(ids))
    assert (one, several) == ([8 * len(ids)], [8 * len(ids) // strips] * strips)
    assert len(np.unique(whole[0].live.sum(axis=1))) > 3 or segment
    for expected, found in zip(whole, joined, strict=True):
        for name, x, y in zip(Trajectories._fields, expected, found, strict=True):
            if name == "action":  # which is anything where no step was taken
                x, y = x[expected.live], y[expected.live]
            assert np.array_equal(x, y, equal_nan=True), name


def test_the_failure_of_one_strip_is_that_of_the_batch() -> None:
    env, _, _ = clocks(horizon=30, fail=lambda copy, h: "raise" if (copy, h) == (4, 4) else "")
    for agents, failing in ((3, 1), (2, 0)):  # strips of four columns of each agent, or of one agent each
        sampler = episode_sampler(env._replace(parallel=True), act, agents, 8, devices=jax.devices() * 2)
        with pytest.raises(StepFailed, match=f"^The environment Clocks of agent {failing} failed in step 4 of its ep"):
            sampler(jnp.full(agents, 9.0), keys_of(range(agents)), jnp.arange(agents), jnp.int32(0))


@pytest.mark.parametrize(
    ("agents", "columns", "processes", "copies"),
    [
        (3, 1, 2, [2, 1]),
        (5, 1, 4, [1, 1, 2, 1]),
        (10, 5, 16, [5] * 10),
        (10, 5, 4, [10, 15, 15, 10]),
        (2, 9, 4, [4, 4, 6, 4]),
    ],
)
def test_processes_share_the_work_as_evenly_as_agents_or_columns_allow(
    agents: int, columns: int, processes: int, copies: list[int]
) -> None:
    env, steps, opened = clocks(horizon=30)
    sampler = episode_sampler(env._replace(processes=processes), act, agents, columns)
    run = sampler(jnp.full(agents, 2.0), keys_of(range(agents)), jnp.arange(agents), jnp.int32(0))
    assert sorted(len(block.worlds) for block in opened) == sorted(copies)
    assert run.live.sum() == steps[0] == 2 * agents * columns


@pytest.mark.parametrize("processes", [1, 2])
def test_after_a_failure_copies_are_opened_anew(processes: int) -> None:
    broken = [True]
    env, _, opened = clocks(horizon=30, fail=lambda copy, h: "raise" if broken and h == 4 else "")
    sampler = episode_sampler(env._replace(processes=processes), act, 2, 3)
    given = jnp.full(2, 9.0), keys_of(range(2)), jnp.arange(2), jnp.int32(0)
    with pytest.raises(StepFailed):
        sampler(*given)
    assert [copies.closed for copies in opened] == [True] * processes
    broken.clear()
    assert (sampler(*given).live.sum(axis=1) == 9).all()
    assert [copies.closed for copies in opened] == [True] * processes + [False] * processes


def test_evaluation_in_strips_plays_the_same_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    env, _, _ = clocks(horizon=30)
    whole = hosted_scores(env, by_seed, jnp.float32(0.0), jax.random.key(0), 0, 75)
    monkeypatch.setattr(jax, "devices", lambda devices=jax.devices(): devices * 3)  # noqa: B008
    env, _, opened = clocks(horizon=30)
    strips = hosted_scores(env._replace(parallel=True), by_seed, jnp.float32(0.0), jax.random.key(0), 0, 75)
    assert np.array_equal(whole, strips) and len(opened) == 3 and all(copies.closed for copies in opened)


def test_evaluation_does_not_depend_on_the_number_of_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(actor: Array, obs: Array, key: Key) -> tuple[Array, Array]:
        return (jax.random.uniform(key, (1,)) * 20,) * 2

    def scores() -> np.ndarray:
        return hosted_scores(clocks(horizon=9)[0], noisy, jnp.float32(0.0), jax.random.key(0), 0, 40)

    before = scores()
    monkeypatch.setattr("mfpo.hosted.EVALUATION_COPIES", 7)
    assert np.array_equal(before, scores()) and len(set(before)) > 3
