"""The sampler on made-up worlds whose episodes are known in advance."""

import functools
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo import envs
from mfpo.federation.sampling import make_sampler
from mfpo.rollout import Sampler, greedy_act, pure_sampler
from mfpo.types import TIME_BLOCK, Algorithm, Array, Box, EnvSpec, Key, Plan, PureEnv, Trajectories

EPISODES = 3


class Clock(NamedTuple):
    """A world whose state tells the time."""

    extra: Array  # drawn on reset: how much longer than asked the episode lasts
    elapsed: Array


def countdown(horizon: int, most_extra: int = 0, steps: Counter[str] | None = None) -> PureEnv:
    """An episode lasts as many steps as the action says, and `extra` more; step number h is worth h.

    The observation is (extra, elapsed + 1), never zero while the world is being looked at. `steps` counts the calls.
    """

    def reset(key: Key) -> Clock:
        return Clock(jnp.int32(jax.random.uniform(key) * (most_extra + 1)), jnp.int32(0))

    def step(state: Clock, action: Array, key: Key) -> tuple[Clock, Array, Array]:
        if steps is not None:
            jax.debug.callback(lambda _: steps.update(["step"]), state.elapsed)
        elapsed = state.elapsed + 1
        return Clock(state.extra, elapsed), elapsed.astype(jnp.float32), elapsed >= action[0] + state.extra

    spec = EnvSpec("Countdown", observation_shape=(2,), action=Box((0.0,), (1000.0,)), horizon=horizon)
    return PureEnv(spec, reset, lambda s: jnp.stack([s.extra, s.elapsed + 1]).astype(jnp.float32), step)


def act(actor: Array, obs: Array, key: Key) -> tuple[Array, Array]:
    """The actor is the wanted length; what is remembered is another number, as for a squashed policy."""
    return actor[None], jnp.stack([actor * 10, jax.random.uniform(key)])


@functools.cache
def sampler(env: PureEnv) -> Any:
    return jax.jit(pure_sampler(env, act, EPISODES))


def sample(env: PureEnv, wanted: list[float], ids: list[int] | None = None) -> Trajectories:
    """Trajectories [agents, ...] of agents that want episodes of these lengths; each agent has its own key."""
    who = jnp.array(ids or range(len(wanted)))
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(5), i))(who)
    return jax.tree.map(np.asarray, sampler(env)(jnp.array(wanted), keys, who))


def slots_of(length: int, slots: int = TIME_BLOCK) -> np.ndarray:
    return np.arange(slots) < length


def test_every_field_of_known_episodes() -> None:
    run = sample(countdown(horizon=7), [1.0, 4.0, 7.0])
    for agent, length in enumerate([1, 4, 7]):
        for d in range(EPISODES):
            live, h = slots_of(length), np.arange(TIME_BLOCK)
            assert np.array_equal(run.live[agent, :, d], live)
            assert np.array_equal(run.reward[agent, :, d], np.where(live, h + 1, 0))
            assert np.array_equal(run.terminated[agent, :, d], h == length - 1)
            assert np.array_equal(run.obs[agent, live, d, 1], h[live] + 1)
            assert np.array_equal(run.action[agent, live, d, 0], np.full(length, 10 * length))
            assert run.last_obs[agent, d].tolist() == [0.0, length + 1]
    assert run.length.tolist() == [1, 4, 7]
    assert not run.truncated.any()  # an episode that ends for good in the last slot the horizon allows is not cut short


def test_episodes_that_end_at_different_times_by_their_keys() -> None:
    run = sample(countdown(horizon=20, most_extra=9), [1.0, 3.0, 8.0])
    extra = run.obs[:, 0, :, 0]
    assert len(np.unique(extra)) > 3
    expected = np.array([[1], [3], [8]]) + extra
    assert np.array_equal(run.live.sum(axis=1), expected)
    assert np.array_equal(run.reward.sum(axis=1), expected * (expected + 1) / 2)
    assert np.array_equal(run.terminated.sum(axis=1), np.ones_like(expected))
    assert np.array_equal(run.terminated.argmax(axis=1) + 1, expected)
    assert np.array_equal(run.last_obs[..., 1], expected + 1)
    assert np.array_equal(run.length, expected.max(axis=1))  # per agent: the longest of its own


@pytest.mark.parametrize("horizon", [1, 50, 51])
def test_endless_episodes_are_truncated_at_the_horizon_and_padded(horizon: int) -> None:
    run = sample(countdown(horizon), [1000.0, float(horizon) + 1])
    slots = {1: 50, 50: 50, 51: 100}[horizon]
    assert run.live.shape == run.reward.shape == run.terminated.shape == run.truncated.shape == (2, slots, EPISODES)
    assert run.obs.shape == (2, slots, EPISODES, 2) and run.last_obs.shape == (2, EPISODES, 2)
    everywhere = np.broadcast_to(slots_of(horizon, slots)[:, None], run.live.shape)
    assert np.array_equal(run.live, everywhere)
    assert np.array_equal(run.truncated, everywhere & (np.arange(slots) == horizon - 1)[:, None])
    assert not run.terminated.any()
    assert (run.last_obs[..., 1] == horizon + 1).all()
    assert (run.length == horizon).all()


@pytest.mark.parametrize(("wanted", "longest"), [([2.0, 3.0], 3), ([5.0, 1.0], 5), ([1000.0, 2.0], 40)])
def test_the_loop_stops_with_the_longest_episode(wanted: list[float], longest: int) -> None:
    steps: Counter[str] = Counter()
    run = sample(countdown(horizon=40, steps=steps), wanted)
    jax.effects_barrier()
    assert run.length.max() == longest
    assert steps["step"] == longest * len(wanted) * EPISODES


def test_an_agents_slots_do_not_depend_on_the_rest_of_the_block() -> None:
    env = countdown(horizon=30, most_extra=9)
    together = sample(env, [4.0, 2.0, 15.0, 9.0], ids=[0, 1, 2, 3])
    for wanted, ids in (([2.0], [1]), ([9.0, 15.0, 2.0, 4.0], [3, 2, 1, 0])):
        alone = sample(env, wanted, ids)
        for row, agent in enumerate(ids):
            live = alone.live[row]
            assert np.array_equal(live, together.live[agent])
            for name in ("obs", "action"):
                assert np.array_equal(getattr(alone, name)[row][live], getattr(together, name)[agent][live]), name
            for name in ("reward", "terminated", "truncated", "last_obs", "length"):
                assert np.array_equal(getattr(alone, name)[row], getattr(together, name)[agent]), name


def test_every_agent_episode_and_step_has_its_own_randomness() -> None:
    run = sample(countdown(horizon=10), [1000.0, 1000.0])
    draws = run.action[:, :10, :, 1]
    assert len(np.unique(draws)) == draws.size


def noise(actor: Array, obs: Array, key: Key) -> tuple[Array, Array]:
    return (jax.random.uniform(key, (1,)),) * 2


def test_reset_action_and_step_draw_different_numbers() -> None:
    def draw(key: Key) -> Array:
        return jax.random.uniform(key, (1,))

    spec = EnvSpec("Noise", observation_shape=(1,), action=Box((0.0,), (1.0,)), horizon=4)
    env = PureEnv(spec, draw, lambda s: s, lambda s, a, key: (draw(key), draw(key)[0], jnp.bool_(False)))
    run = jax.jit(pure_sampler(env, noise, 2))(jnp.zeros(1), jax.random.key(0)[None], jnp.arange(1))
    obs, action, reward = (np.asarray(x)[0, :4].reshape(4, 2) for x in (run.obs, run.action, run.reward))
    assert np.array_equal(obs[1:], reward[:-1])  # by the construction of this world
    assert len(np.unique([obs[0], *action, *reward])) == 2 * (1 + 4 + 4)


def algorithm_that(**functions: Any) -> Algorithm:
    unused = dict.fromkeys(Algorithm._fields, lambda *_: pytest.fail("not to be called here"))
    return Algorithm(**{**unused, "plan": Plan(local_steps=1, episodes=2), **functions})


def test_sampler_of_an_algorithm_takes_its_episodes_and_its_act() -> None:
    def shape(sampler: Sampler) -> tuple[int, ...]:
        run = jax.eval_shape(sampler, jnp.array([2.0]), jax.random.key(0)[None], jnp.arange(1), jnp.int32(0))
        return tuple(run.action.shape)

    algorithm = algorithm_that(act=act)
    assert shape(make_sampler(countdown(3), algorithm, agents=1)) == (1, TIME_BLOCK, 2, 2)


def test_greedy_act_ignores_the_key() -> None:
    algorithm = algorithm_that(greedy=lambda params, obs: params + obs)
    one, two = (greedy_act(algorithm)(jnp.float32(1.0), jnp.float32(2.0), jax.random.key(i)) for i in range(2))
    assert one == two == (3.0, 3.0)


def test_every_agent_lives_in_its_own_world() -> None:
    """Pendulums in other gravities: the same keys, other episodes; the usual one as if there were no other."""
    env = envs.make("Pendulum-v1")
    other = envs.make("Pendulum-v1", world="g=10,3", agents=2)
    still = lambda actor, obs, key: (jnp.zeros(1),) * 2  # noqa: E731
    keys = jnp.stack([jax.random.key(0)] * 2)
    same, mixed = (jax.jit(pure_sampler(e, still, 2))(jnp.zeros(2), keys, jnp.arange(2)) for e in (env, other))
    assert np.array_equal(same.reward[0], same.reward[1])
    np.testing.assert_allclose(mixed.reward[0], same.reward[0], atol=1e-4)
    assert np.abs(mixed.reward[1] - same.reward[1]).max() > 1
    assert np.array_equal(mixed.obs[0, 0], mixed.obs[1, 0])
    alone = jax.jit(pure_sampler(other, still, 2))(jnp.zeros(1), keys[:1], jnp.array([1]))
    np.testing.assert_allclose(alone.reward[0], mixed.reward[1], atol=1e-4)
