"""The replay against a list: what is in the ring, and that it is put together as it was seen."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo.learning import replay as memory
from mfpo.learning.images import lagged
from mfpo.learning.normalisation import Statistics
from mfpo.learning.replay import Replay, Rule, Shared, Transitions
from mfpo.learning.schedules import geometric
from mfpo.types import Box, Discrete, EnvSpec, Trajectories

SPEC = EnvSpec("made up", (1,), Discrete(9), 10)
KEY = jax.random.key(0)
JUNK = 99.0
MANY, GAMMA = 400, 0.5
add = partial(jax.jit, static_argnums=2)(memory.add)
sample = partial(jax.jit, static_argnums=(2, 3, 4, 5))(memory.sample)
learn = partial(jax.jit, static_argnums=0)(memory.learn)


def ring(capacity: int, spec: EnvSpec = SPEC) -> Replay:
    return memory.empty(spec, jnp.zeros(1, jnp.int32), capacity)


def batch_of(*columns: str, first: int = 1) -> Trajectories:
    """Columns as in "--T-t.": steps, T terminating, t truncating, and slots that are not live (.).

    Observations count up from `first`, from slot to slot and column to column, with a gap of ten between episodes; an
    action is ten times its observation, a reward half of it. The last slot of "--t" leads to `last_obs`.
    """
    slots = 8  # whatever is asked for, so that little has to be compiled
    columns = tuple(column.ljust(slots, ".") for column in columns)
    shape = (slots, len(columns))
    obs, last_obs = np.full(shape, JUNK), np.zeros(len(columns))
    live, terminated, truncated = (np.zeros(shape, bool) for _ in range(3))
    now = first
    for d, column in enumerate(columns):
        for h, mark in enumerate(column):
            after_truncation = h > 0 and column[h - 1] == "t"
            if mark != "." or (after_truncation and set(column[h:]) != {"."}):
                obs[h, d] = now
                live[h, d], terminated[h, d], truncated[h, d] = mark != ".", mark == "T", mark == "t"
                now += 10 if mark in "T." else 1
            if mark != ".":
                last_obs[d] = now
        now += 10
    x = jnp.asarray(obs, jnp.float32)[..., None]
    reward = jnp.where(live, x[..., 0] / 2, 0.0)
    flags = map(jnp.asarray, (live, terminated, truncated))
    last = jnp.asarray(last_obs, jnp.float32)[:, None]
    return Trajectories(x, (10 * x).astype(jnp.int32), reward, *flags, last, jnp.int32(slots), jnp.zeros(len(columns)))


def held(replay: Replay, stack: int = 0) -> Transitions:
    """Everything, oldest first. Samples are spread evenly, so that many of them are all steps in their order."""
    many = jax.tree.map(lambda x: np.asarray(x)[::-1], sample(replay, KEY, MANY, GAMMA, 1, stack))
    flat = np.concatenate([many.obs.reshape(MANY, -1), many.after.reshape(MANY, -1)], axis=1)
    first = np.concatenate([[True], (flat[1:] != flat[:-1]).any(axis=1)])
    assert MANY >= 2 * replay.steps == 2 * first.sum()
    return jax.tree.map(lambda x: x[first], many)


def numbers(replay: Replay) -> list[int]:
    """The observations of the steps held, after a look at the rest of each."""
    steps = held(replay)
    obs = steps.obs[:, 0]
    assert np.array_equal(steps.action[:, 0], 10 * obs) and np.array_equal(steps.reward, obs / 2)
    goes_on = steps.discount > 0
    assert np.array_equal(np.unique(steps.discount[goes_on]), [GAMMA] if goes_on.any() else [])
    assert np.array_equal(steps.after[goes_on, 0], obs[goes_on] + 1)
    assert JUNK not in obs and JUNK not in steps.after[goes_on]
    return [int(x) for x in obs]


def test_steps_are_kept_with_what_they_led_to() -> None:
    replay = add(ring(20), batch_of("--T", "-t."), 0)
    assert numbers(replay) == [1, 2, 3, 23, 24]
    steps = held(replay)
    assert steps.discount.tolist() == [GAMMA, GAMMA, 0, GAMMA, GAMMA]
    assert steps.after[-1, 0] == 25  # `last_obs`, not the slot after it, which means nothing


def test_dead_slots_are_not_stored() -> None:
    replay = add(ring(20), batch_of("-T....", "---T.."), 0)
    assert int(replay.steps) == 6 and int(replay.next_slot) == 6
    assert JUNK not in np.asarray(replay.obs)
    assert replay.live.sum() == 6


def test_after_a_truncation_within_a_segment_there_is_the_slot_after_it() -> None:
    replay = add(ring(20), batch_of("-t.--T-t"), 0)
    steps = held(replay)
    assert numbers(replay) == [1, 2, 13, 14, 15, 25, 26]
    assert steps.after[1, 0] == 3 and steps.after[-1, 0] == 27
    assert steps.discount.tolist() == [GAMMA, GAMMA, GAMMA, GAMMA, 0, GAMMA, GAMMA]


def test_a_segment_whose_last_slot_is_what_a_truncated_step_led_to() -> None:
    """Both the slot and `last_obs` hold it; the ring needs it once."""
    batch = batch_of("--t.")
    batch = batch._replace(obs=batch.obs.at[3].set(batch.last_obs))
    replay = add(ring(20), batch, 0)
    assert numbers(replay) == [1, 2, 3] and int(replay.next_slot) == 4


def test_a_full_ring_forgets_the_oldest() -> None:
    replay = ring(7)
    for first, column, expected in (
        (1, "---T", [1, 2, 3, 4]),
        (101, "--t", [2, 3, 4, 101, 102, 103]),  # four slots: 3 steps and what the last led to
        (201, "-t", [101, 102, 103, 201, 202]),
        (301, "T", [102, 103, 201, 202, 301]),
    ):
        replay = add(replay, batch_of(column, first=first), 0)
        assert numbers(replay) == expected


def test_of_a_batch_larger_than_the_ring_the_end_is_kept() -> None:
    replay = add(add(ring(5), batch_of("--T"), 0), batch_of("----T--t", "T", first=101), 0)
    assert numbers(replay) == [115, 116, 117, 128]
    replay = add(replay, batch_of("-T", first=201), 0)
    assert numbers(replay) == [117, 128, 201, 202]


@pytest.mark.parametrize("capacity", [8, 13, 40, 200])
def test_the_ring_is_the_end_of_a_list(capacity: int) -> None:
    rng, replay, everything = np.random.default_rng(capacity), ring(capacity), []
    for n in range(30):
        columns = ["".join(rng.choice(list("----T"), rng.integers(1, 6))) for _ in range(2)]
        columns = [c if c[-1] == "T" else c[:-1] + "t" for c in columns]
        batch = batch_of(*columns, first=1000 * n + 1)
        replay = add(replay, batch, 0)
        everything += [int(x) for x in np.asarray(batch.obs)[..., 0].T[np.asarray(batch.live).T]]
        found = numbers(replay)
        assert found == everything[-len(found) :]
        assert len(found) >= min(len(everything), capacity * 2 // 3 - 1)  # what steps led to takes slots as well


def test_every_step_is_equally_likely() -> None:
    replay = add(add(ring(11), batch_of("-----T"), 0), batch_of("-------t", first=101), 0)
    steps = numbers(replay)
    draws = jax.jit(jax.vmap(lambda key: memory.sample(replay, key, 3, GAMMA).obs[:, 0]))(jax.random.split(KEY, 4000))
    counts = np.array([np.sum(np.asarray(draws) == x) for x in steps])
    assert len(steps) == 10 and counts.sum() == draws.size
    np.testing.assert_allclose(counts, draws.size / 10, rtol=0.1)  # five standard deviations are 0.14 without strata


def test_as_many_samples_as_steps_are_each_of_them_once() -> None:
    replay = add(ring(11), batch_of("-----T", "--t"), 0)
    assert sorted(sample(replay, KEY, 9, GAMMA).obs[:, 0].tolist()) == numbers(replay)


def test_a_replay_that_holds_one_step_gives_it() -> None:
    steps = sample(add(ring(4), batch_of("T", first=7), 0), KEY, 5, GAMMA)
    assert steps.obs[:, 0].tolist() == [7.0] * 5 and steps.discount.tolist() == [0.0] * 5


def test_several_rewards_are_summed_up_to_the_end_of_an_episode() -> None:
    """Rewards are half the observations; γ = 1/2."""
    replay = add(ring(20), batch_of("---T-t.t", "--t"), 0)
    assert numbers(replay) == [1, 2, 3, 4, 14, 15, 26, 37, 38, 39]
    steps = sample(replay, KEY, 10, GAMMA, 3)
    rows = [[*x] for x in zip(*(np.asarray(x).ravel()[::-1] for x in steps[2:]), strict=True)]
    expected = [  # reward, after, discount
        [0.5 + 1 / 2 + 1.5 / 4, 4, 1 / 8],
        [1 + 1.5 / 2 + 2 / 4, 14, 0],  # what is after a terminated step is of another episode
        [1.5 + 2 / 2, 14, 0],
        [2, 14, 0],
        [7 + 7.5 / 2, 16, 1 / 4],  # truncated: less is summed, and what it led to stands for the rest
        [7.5, 16, 1 / 2],
        [13, 27, 1 / 2],
        [18.5 + 19 / 2 + 19.5 / 4, 40, 1 / 8],
        [19 + 19.5 / 2, 40, 1 / 4],
        [19.5, 40, 1 / 2],
    ]
    np.testing.assert_allclose(rows, expected)


def test_default_capacity_follows_the_horizon() -> None:
    for horizon, capacity in ((1, 1_000), (500, 25_000), (10_000, 100_000)):
        replay = jax.eval_shape(lambda h=horizon: memory.empty(SPEC._replace(horizon=h), jnp.zeros(1), 0))
        assert replay.reward.shape == (capacity,)


STACK = 3
FRAMES = EnvSpec("frames", (STACK, 2, 2), Box((-1.0,), (1.0,)), 10, stack=STACK)


def frames_of(rng: np.random.Generator, columns: list[str], before: np.ndarray) -> Trajectories:
    """Random frames, none of them black; `before` are the earlier ones [STACK - 1, D, 2, 2]."""
    batch = batch_of(*columns)
    shown = rng.integers(1, 255, (*batch.live.shape, 2, 2), dtype=np.uint8)
    last = rng.integers(1, 255, (len(columns), STACK, 2, 2), dtype=np.uint8)
    obs = jnp.asarray(np.concatenate([before, shown]))
    return batch._replace(obs=obs, last_obs=jnp.asarray(last))


def model_of(batch: Trajectories) -> list[tuple[np.ndarray, np.ndarray, bool]]:
    """(observation, what it led to, terminated) of every step, column by column, with `images.lagged` as authority."""
    seen, found = np.stack(lagged(batch, STACK), axis=2), []
    live, terminated = np.asarray(batch.live), np.asarray(batch.terminated)
    for d in range(live.shape[1]):
        last = np.flatnonzero(live[:, d])[-1]
        for h in np.flatnonzero(live[:, d]):
            newest = np.asarray(batch.last_obs)[d, -1] if h == last else seen[min(h + 1, len(live) - 1), d, -1]
            found.append((seen[h, d], np.concatenate([seen[h, d][1:], newest[None]]), terminated[h, d]))
    return found


@pytest.mark.parametrize("capacity", [9, 17, 100])
def test_frames_are_stored_once_and_stacked_as_they_were_seen(capacity: int) -> None:
    rng, replay = np.random.default_rng(1), ring(capacity, FRAMES)
    everything: list[tuple[np.ndarray, np.ndarray, bool]] = []
    assert replay.obs.shape == (capacity, 2, 2) and replay.obs.dtype == jnp.uint8
    for columns in (["-T--", "----T"], ["--t.-T", "T-T-t."], ["-----t", "--T"], ["t", "T"], ["--T-t.-t", "--------"]):
        columns = [c[:-1] + "t" if c[-1] == "-" else c for c in columns]
        before = rng.integers(1, 255, (STACK - 1, len(columns), 2, 2), dtype=np.uint8)
        before[:, -1] = 0  # the last column begins an episode, the others go on with one
        batch = frames_of(rng, columns, before)
        replay = add(replay, batch, STACK)
        everything += model_of(batch)
        steps = held(replay, STACK)
        assert 1 <= len(steps.obs) <= len(everything)
        assert capacity < 100 or len(steps.obs) == len(everything)
        for obs, after, terminated, (obs_, after_, terminated_) in zip(
            steps.obs, steps.after, steps.discount == 0, everything[-len(steps.obs) :], strict=True
        ):
            assert np.array_equal(obs, obs_) and terminated == terminated_
            assert terminated or np.array_equal(after, after_)


# Learning from it: a loss of theta and target with known gradients.


def slope(theta: jax.Array, target: jax.Array, batch: Transitions, key: jax.Array) -> tuple[jax.Array, dict]:
    return jnp.sum(theta * jnp.array([1.0, -1.0, 0.0])), {"seen": jnp.mean(batch.obs)}


RULE = Rule(
    slope,
    GAMMA,
    lookahead=1,
    samples=2,
    updates_per_step=0.5,
    warmup=0,
    stepsize=geometric(0.1 * 2, 0.5),
    target_rate=0.25,
)


def shared(theta: list[float], t: float, steps: float, obs: Any = ()) -> Shared:
    return Shared(jnp.array(theta), jnp.float32(t), jnp.float32(steps), obs)


def learner(theta: list[float], steps: float = 0.0, obs: Any = ()) -> memory.Learner:
    download = shared(theta, 0.0, steps, obs)
    return memory.receive(memory.join(download, jnp.ones(2), ring(20)), download)


@pytest.mark.parametrize(("column", "updates"), [("T", 1), ("-T", 1), ("--T", 2), ("-------T", 4)])
def test_there_are_so_many_updates_for_every_new_step(column: str, updates: int) -> None:
    agent, metrics = learn(RULE, learner([0.0, 0.0, 5.0]), batch_of(column, first=3), KEY)
    assert int(agent.optimiser.updates) == updates
    # Adam with a constant gradient moves by the stepsize, against its sign
    np.testing.assert_allclose(agent.theta, [-0.1 * updates, 0.1 * updates, 5.0], rtol=1e-5)
    assert float(agent.steps) == len(column)
    assert 3 <= float(metrics["seen"]) <= 3 + len(column)


def test_the_target_follows_the_first_entries() -> None:
    agent, _ = learn(RULE, learner([0.0, 0.0, 5.0]), batch_of("---T"), KEY)
    # after the first update 0.25 · -0.1; after the second the distance that is left is -0.2 + 0.025
    np.testing.assert_allclose(agent.target, np.array([-1, 1]) * (0.025 + 0.25 * 0.175), rtol=1e-5)


def test_nothing_is_learned_while_warming_up_but_all_is_remembered() -> None:
    rule, agent = RULE._replace(warmup=5), learner([1.0, 2.0, 3.0])
    agent, metrics = learn(rule, agent, batch_of("---T"), KEY)
    assert np.array_equal(agent.theta, [1, 2, 3]) and int(agent.optimiser.updates) == 0 and metrics["seen"] == 0
    assert int(agent.replay.steps) == 4
    agent, _ = learn(rule, agent, batch_of("T", first=50), KEY)  # the fifth step
    assert int(agent.optimiser.updates) == 1
    late, _ = learn(rule, learner([1.0, 2.0, 3.0], steps=100.0), batch_of("T"), KEY)
    assert int(late.optimiser.updates) == 1  # the others have warmed up


def test_observations_are_in_the_units_that_were_downloaded() -> None:
    """Mean 3 and standard deviation 2; what is seen changes nothing before the server has heard of it."""
    units = Statistics(jnp.float32(4.0), jnp.array([3.0]), jnp.array([16.0]))
    agent, metrics = learn(RULE, learner([0.0, 0.0, 5.0], obs=units), batch_of("T", first=7), KEY)
    assert float(metrics["seen"]) == 2.0 and jax.tree.all(jax.tree.map(np.array_equal, agent.obs, units))
    agent, metrics = learn(RULE, agent, batch_of("T", first=7), KEY)
    assert float(metrics["seen"]) == 2.0
    upload = memory.upload(agent)
    assert jax.tree.map(lambda x: x.tolist(), upload.obs) == (2.0, [7.0], [0.0])  # of the round only
    server, everyone = shared([0.0, 0.0, 5.0], 0.0, 0.0, units), jnp.ones(2, bool)
    uploads = jax.tree.map(lambda x: jnp.stack([x, x]), upload)
    merged, _ = memory.merge(server, uploads, everyone)
    assert float(merged.obs.n) == 8.0 and float(merged.obs.mean[0]) == 5.0
    assert jax.tree.all(jax.tree.map(np.array_equal, memory.receive(agent, merged).obs, merged.obs))
    assert float(memory.receive(agent, merged).obs_seen.n) == 0.0


def test_a_target_begins_as_the_first_download_and_is_private_from_then_on() -> None:
    agent = learner([1.0, 2.0, 3.0])
    assert np.array_equal(agent.target, [1, 2]) and np.array_equal(agent.theta, [1, 2, 3])
    agent, _ = learn(RULE, agent, batch_of("-T"), KEY)
    again = memory.receive(agent, shared([7.0, 8.0, 9.0], 4.0, 6.0))
    assert np.array_equal(again.theta, [7, 8, 9]) and (float(again.t), float(again.steps)) == (4, 6)
    assert np.array_equal(again.target, agent.target) and not np.array_equal(again.target, [7, 8])
    assert jax.tree.all(jax.tree.map(np.array_equal, again.optimiser, agent.optimiser))


def test_the_stepsize_follows_the_local_steps() -> None:
    agent = learner([0.0, 0.0, 5.0])
    for expected in (0.1, 0.1 + 0.05, 0.1 + 0.05 + 0.025):
        agent, _ = learn(RULE, agent, batch_of("T"), KEY)
        np.testing.assert_allclose(agent.theta, [-expected, expected, 5.0], rtol=1e-5)


def test_only_networks_and_counts_are_uploaded() -> None:
    agent, _ = learn(RULE, learner([1.0, 2.0, 3.0]), batch_of("-T"), KEY)
    upload = memory.upload(agent)
    assert len(jax.tree.leaves(upload)) == 3 and upload.obs == ()
    assert np.array_equal(upload.theta, agent.theta) and (float(upload.t), float(upload.steps)) == (1, 2)


def test_the_server_averages_those_who_answered() -> None:
    server = shared([1.0, 1.0], 0.0, 4.0)
    uploads = Shared(
        jnp.array([[1.0, 2.0], [3.0, 8.0], [jnp.nan, 9.0]]), jnp.full(3, 5.0), jnp.array([10.0, 30.0, 1e9]), ()
    )
    merged, metrics = memory.merge(server, uploads, jnp.array([True, True, False]))
    assert np.array_equal(merged.theta, [2, 5]) and (float(merged.t), float(merged.steps)) == (5, 20)
    np.testing.assert_allclose(metrics["drift"], np.sqrt(10), rtol=1e-6)
    nobody, metrics = memory.merge(server, uploads, jnp.zeros(3, bool))
    assert (
        np.array_equal(nobody.theta, [1, 1])
        and (float(nobody.t), float(nobody.steps)) == (0, 4)
        and float(metrics["drift"]) == 0
    )
