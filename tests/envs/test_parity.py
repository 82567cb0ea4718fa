"""Pure environments against their Gymnasium counterparts, step by step.

A new environment is compared as soon as it is registered; it only needs an entry in ADAPTERS.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo import envs
from mfpo.rollout import pure_sampler
from mfpo.types import Array, Box, Discrete, EnvSpec, Key, PureEnv, Trajectories

SEEDS = (0, 1, 2)
STEPS = 400  # compared per seed


class Adapter(NamedTuple):
    """What the comparison has to know of one environment."""

    low: tuple[float, ...]  # range of a state after reset
    high: tuple[float, ...]
    spread: tuple[float, ...]  # states beyond what episodes reach, for single steps from anywhere: ± this
    set_state: Callable[[Any, np.ndarray], None]  # unwrapped Gymnasium environment, our state
    get_state: Callable[[Any], np.ndarray]
    state_of: Callable[[np.ndarray], np.ndarray]  # observation -> state
    random_ends: bool  # random actions end an episode before the horizon
    steady: Callable[[Array], Array]  # observation -> an action under which episodes last to the horizon


def set_cartpole(env: Any, state: np.ndarray) -> None:
    env.state = np.array(state, np.float64)
    env.steps_beyond_terminated = None


def set_pendulum(env: Any, state: np.ndarray) -> None:
    env.state = np.array(state, np.float64)


ADAPTERS = {
    "CartPole-v1": Adapter(
        low=(-0.05,) * 4,
        high=(0.05,) * 4,
        spread=(3.0, 4.0, 0.3, 4.0),
        set_state=set_cartpole,
        get_state=lambda env: np.array(env.state),
        state_of=lambda obs: obs,
        random_ends=True,
        steady=lambda obs: (obs @ jnp.array([0.1, 0.3, 1.0, 0.5]) > 0).astype(jnp.int32),
    ),
    "Pendulum-v1": Adapter(
        low=(-np.pi, -1.0),
        high=(np.pi, 1.0),
        spread=(30.0, 8.0),
        set_state=set_pendulum,
        get_state=lambda env: np.array(env.state),
        state_of=lambda obs: np.array([np.arctan2(obs[1], obs[0]), obs[2]]),
        random_ends=False,
        steady=lambda obs: jnp.clip(-2.0 * obs[1:2] - obs[2:3], -2.0, 2.0),
    ),
}


def pure_with_counterpart() -> list[str]:
    return [n for n in envs.list_environments() if n in gymnasium.registry and isinstance(envs.make(n), PureEnv)]


class Pair(NamedTuple):
    ours: PureEnv
    theirs: Any  # with its wrappers, so that it truncates
    adapter: Adapter


@pytest.fixture(params=pure_with_counterpart())
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    assert request.param in ADAPTERS, f"{request.param} needs an entry in ADAPTERS"
    theirs = gymnasium.make(request.param, disable_env_checker=True)
    yield Pair(envs.make(request.param), theirs, ADAPTERS[request.param])
    theirs.close()


def any_action(spec: EnvSpec, key: Key, beyond: float = 1.0) -> Array:
    """Uniform over the action space; over `beyond` times its range, if that has bounds."""
    if isinstance(spec.action, Discrete):
        return jax.random.randint(key, (), 0, spec.action.n)
    low, high = jnp.array(spec.action.low), jnp.array(spec.action.high)
    return jax.random.uniform(key, low.shape, minval=low * beyond, maxval=high * beyond)


def for_gymnasium(action: np.ndarray) -> Any:
    return int(action) if action.ndim == 0 else action


def close(ours: Any, theirs: Any) -> bool:
    return bool(np.allclose(ours, theirs, rtol=1e-5, atol=2e-5))


def test_cartpole_and_pendulum_are_compared() -> None:
    assert {"CartPole-v1", "Pendulum-v1"} <= set(pure_with_counterpart())


def test_spec_is_gymnasiums(pair: Pair) -> None:
    spec, theirs = pair.ours.spec, pair.theirs
    assert spec.id == theirs.spec.id
    assert spec.horizon == theirs.spec.max_episode_steps
    assert spec.observation_shape == theirs.observation_space.shape
    if isinstance(spec.action, Discrete):
        assert spec.action.n == theirs.action_space.n
    else:
        assert isinstance(spec.action, Box)
        assert spec.action.low == tuple(theirs.action_space.low.tolist())
        assert spec.action.high == tuple(theirs.action_space.high.tolist())


def test_one_step_from_anywhere(pair: Pair) -> None:
    ours, adapter = pair.ours, pair.adapter
    spread = jnp.array(adapter.spread)

    def draw(key: Key) -> tuple[Array, ...]:
        key_state, key_action = jax.random.split(key)
        state = jax.random.uniform(key_state, spread.shape, minval=-spread, maxval=spread)
        action = any_action(ours.spec, key_action, beyond=1.5)
        after, reward, terminated = ours.step(state, action, key)
        return state, action, ours.observe(after), reward, terminated

    rows = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), STEPS))
    compare(pair, rows)
    ends = np.asarray(rows[-1])
    assert ends.any() == adapter.random_ends and not ends.all()  # both sides of the boundary were visited


def test_many_steps_of_random_actions(pair: Pair) -> None:
    """Ours runs freely and is never put right; theirs is set to where ours is before every step."""
    ours = pair.ours

    def advance(state: Any, key: Key) -> tuple[Any, tuple[Array, ...]]:
        key_action, key_step, key_reset = jax.random.split(key, 3)
        action = any_action(ours.spec, key_action)
        after, reward, terminated = ours.step(state, action, key_step)
        row = (state, action, ours.observe(after), reward, terminated)
        return jnp.where(terminated, ours.reset(key_reset), after), row

    def run(key: Key) -> tuple[Array, ...]:
        return jax.lax.scan(advance, ours.reset(key), jax.random.split(key, STEPS))[1]

    by_seed = jax.jit(jax.vmap(run))(jax.vmap(jax.random.key)(jnp.array(SEEDS)))
    for i in range(len(SEEDS)):
        compare(pair, jax.tree.map(lambda x, i=i: x[i], by_seed))


def compare(pair: Pair, rows: tuple[Array, ...]) -> None:
    """Each row is a state, an action, and what our step made of them."""
    pair.theirs.reset(seed=0)
    for state, action, obs, reward, terminated in zip(*map(np.asarray, rows), strict=True):
        pair.adapter.set_state(pair.theirs.unwrapped, state)
        obs_, reward_, terminated_, _, _ = pair.theirs.unwrapped.step(for_gymnasium(action))
        assert close(obs, obs_) and close(reward, reward_), (state, action)
        assert terminated == terminated_, (state, action)


def replay(pair: Pair, run: Trajectories, d: int) -> tuple[int, bool, bool]:
    """One of our episodes, repeated in Gymnasium under its own time limit: length, terminated, truncated."""
    length = int(run.live[:, d].sum())
    assert run.live[:length, d].all()
    pair.theirs.reset(seed=d)
    terminated = truncated = False
    for h in range(length):
        assert not terminated and not truncated, f"Gymnasium ended the episode at {h}, we at {length}"
        pair.adapter.set_state(pair.theirs.unwrapped, pair.adapter.state_of(run.obs[h, d]))
        obs, reward, terminated, truncated, _ = pair.theirs.step(for_gymnasium(run.action[h, d]))
        assert close(run.obs[h + 1, d] if h + 1 < length else run.last_obs[d], obs), h
        assert close(run.reward[h, d], reward), h
        assert run.terminated[h, d] == terminated, h
        assert run.truncated[h, d] == truncated, h
    return length, terminated, truncated


def test_complete_episodes(pair: Pair) -> None:
    """One agent acts at random, one steadily to the horizon; each episode ends as and when Gymnasium ends it."""

    def act(steady: Array, obs: Array, key: Key) -> tuple[Array, Array]:
        action = jnp.where(steady, pair.adapter.steady(obs), any_action(pair.ours.spec, key))
        return action, action

    keys = jax.random.split(jax.random.key(0), 2)
    runs = jax.jit(pure_sampler(pair.ours, act, 4))(jnp.array([False, True]), keys, jnp.arange(2))
    at_random, steadily = (jax.tree.map(lambda x, i=i: np.asarray(x[i]), runs) for i in range(2))
    for d in range(4):
        length, terminated, truncated = replay(pair, at_random, d)
        assert (terminated, truncated) == (pair.adapter.random_ends, not pair.adapter.random_ends)
        length, terminated, truncated = replay(pair, steadily, d)
        assert (length, terminated, truncated) == (pair.ours.spec.horizon, False, True)


def test_resets_are_distributed_as_gymnasiums(pair: Pair) -> None:
    n = 2000
    ours = np.asarray(jax.jit(jax.vmap(pair.ours.reset))(jax.random.split(jax.random.key(0), n)))
    pair.theirs.reset(seed=0)
    theirs = np.array([(pair.theirs.reset(), pair.adapter.get_state(pair.theirs.unwrapped))[1] for _ in range(n)])
    assert ours.shape == theirs.shape == (n, len(pair.adapter.low))
    for i, (low, high) in enumerate(zip(pair.adapter.low, pair.adapter.high, strict=True)):
        grid = np.linspace(low, high, 101)
        for states in (ours, theirs):
            assert low - 1e-6 <= states[:, i].min() < low + 0.01 * (high - low)
            assert high - 0.01 * (high - low) < states[:, i].max() <= high + 1e-6
        share = [np.searchsorted(np.sort(states[:, i]), grid) / n for states in (ours, theirs)]
        assert np.abs(share[0] - share[1]).max() < 0.07  # two-sample Kolmogorov-Smirnov, one in ten thousand
    correlation = np.corrcoef(ours.T) - np.eye(ours.shape[1])
    assert np.abs(correlation).max() < 0.1  # the dimensions are drawn independently


def derive(env: Any) -> None:
    """CartPole keeps products of its parameters."""
    if hasattr(env, "masspole"):
        env.total_mass, env.polemass_length = env.masspole + env.masscart, env.masspole * env.length


def test_another_world_is_that_of_gymnasium_with_other_attributes(pair: Pair) -> None:
    assert pair.ours.at is not None
    usual, env = pair.ours.world, pair.theirs.unwrapped
    env.reset(seed=0)
    state = np.asarray(pair.adapter.get_state(env), np.float32)
    action = 1 if isinstance(pair.ours.spec.action, Discrete) else np.array([0.7], np.float32)
    for name, value in usual._asdict().items():
        assert getattr(env, name) == value
        ours = pair.ours.at(usual._replace(**{name: 1.7 * value}))
        expected = {}
        for factor in (1.0, 1.7):
            setattr(env, name, factor * value)
            derive(env)
            pair.adapter.set_state(env, state)
            env.step(action)
            expected[factor] = np.array(pair.adapter.get_state(env))
        setattr(env, name, value)
        derive(env)
        after, _, _ = ours.step(jnp.asarray(state), jnp.asarray(action), jax.random.key(0))
        np.testing.assert_allclose(after, expected[1.7], rtol=1e-5, atol=1e-6)
        assert not np.allclose(expected[1.0], expected[1.7], rtol=1e-5, atol=1e-6), name
