"""The engines agree; a draw depends on seed, purpose, round, agent and step alone; a run can be cut anywhere.

What holds for every algorithm is shown with a toy that compiles at once and remembers every number it was dealt; MFPO
itself is there to show that real numbers agree too.
"""

import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo import algorithms, envs
from mfpo.algorithms.mfpo import Config
from mfpo.errors import ConfigError, Diverged, MfpoError, StepFailed
from mfpo.federation import ENGINES, Engine, RoundLog, State, evaluate, make_engine, turns
from mfpo.federation import round as federation_round
from mfpo.federation.inprocess import usable_devices
from mfpo.federation.round import Purpose, address
from mfpo.federation.sampling import make_sampler
from mfpo.rollout import pure_sampler
from mfpo.types import Algorithm, Array, Box, EnvSpec, Key, Metrics, Plan, PureEnv, PyTree, Trajectories

pytestmark = pytest.mark.xdist_group("engines")  # one worker, so that every program is compiled once

both_engines = pytest.mark.parametrize("engine", ENGINES)

# The toy: a world of pure noise, and an algorithm that writes down what it is dealt.

K, D, INITIAL, MEMORY = 2, 3, 1, 16


def draw(key: Key) -> Array:
    """A number between 0 and 1 that tells which key it was made from; quicker to compile than a proper one."""
    return (jax.random.key_data(key)[1] >> 8).astype(jnp.float32) * 2.0**-24


def noise_world() -> PureEnv:
    """Start, action and step each add a number of their own to the return of an episode of at most six steps."""

    def step(state: Array, action: Array, key: Key) -> tuple[Array, Array, Array]:
        luck = draw(key)
        return state + luck, state[0] + action[0] + luck, luck < 0.1

    spec = EnvSpec("Noise", observation_shape=(1,), action=Box((-1.0,), (1.0,)), horizon=6)
    return PureEnv(spec, lambda key: draw(key)[None], lambda state: state, step)


class ToyServer(NamedTuple):
    x: Array
    luck: Array  # of merging


class ToyAgent(NamedTuple):
    name: Array  # drawn on joining
    steps: Array
    x: Array
    luck: Array  # [MEMORY] of learning, a number per step


def toy(learn: Callable[[ToyAgent], ToyAgent] = lambda agent: agent) -> Algorithm:
    """Acts the same whatever it learns, so that its episodes show the randomness and nothing else."""

    def learn_(agent: ToyAgent, batch: Trajectories, key: Key) -> tuple[ToyAgent, Metrics]:
        luck = draw(key)
        x = agent.x + jnp.mean(jnp.sum(batch.reward, axis=0))
        agent = ToyAgent(agent.name, agent.steps + 1, x, agent.luck.at[agent.steps].set(luck))
        return learn(agent), {"luck": luck}

    def merge(server: ToyServer, uploads: Array, mask: Array, key: Key) -> tuple[ToyServer, Metrics]:
        luck = draw(key)
        return ToyServer(server.x + jnp.sum(uploads * mask) / jnp.sum(mask), server.luck + luck), {"luck": luck}

    def act(params: Array, obs: Array, key: Key) -> tuple[Array, Array]:
        return (draw(key)[None],) * 2

    return Algorithm(
        plan=Plan(K, D, INITIAL),
        init=lambda key: ToyServer(draw(key), jnp.float32(0.0)),
        join=lambda key: ToyAgent(draw(key), jnp.int32(0), jnp.float32(0.0), jnp.zeros(MEMORY)),
        download=lambda server: server.x,
        receive=lambda agent, x: agent._replace(x=x),
        actor=lambda side: side.x,
        act=act,
        greedy=lambda params, obs: jnp.zeros(1),
        learn=learn_,
        upload=lambda agent: agent.x,
        merge=merge,
    )


NOISE, TOY = noise_world(), toy()


@functools.cache
def toy_engine(engine: str, agents: int, seed: int = 0) -> Engine:
    return make_engine(engine, TOY, NOISE, agents, seed)


def to_host(tree: PyTree) -> PyTree:
    return jax.tree.map(np.array, tree)  # a copy: the engine may reuse the memory of a state it was given


def play(engine: Engine, rounds: int, state: State | None = None, first: int = 1) -> tuple[State, list[RoundLog]]:
    state, logs = engine.start() if state is None else state, []
    for number in range(first, first + rounds):
        state, log = engine.round(state, number)
        logs.append(log)
    return to_host(state), logs


def same(a: PyTree, b: PyTree) -> bool:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@functools.cache
def played(engine: str, agents: int, seed: int) -> tuple[State, list[RoundLog]]:
    """Three rounds of the toy."""
    return play(toy_engine(engine, agents, seed), 3)


# MFPO, small.

SMALL: dict[str, Any] = {
    "local_steps": 3, "trajectories": 4, "hidden": (8,), "value_hidden": (6,), "fisher_samples": 32,
    "cg_iterations": 4, "value_updates": 3, "value_samples": 32,
}  # fmt: skip
CHOICES: dict[str, dict[str, Any]] = {
    "natural, value, observations": {"step": "natural", "baseline": "value", "normalise_observations": True},
    "adam, time": {"step": "adam", "baseline": "time", "stepsize": 0.01},
    "normalised, no server adjustment": {"step": "normalised", "baseline": "constant", "server_adjustment": False},
    "plain reinforce, initial trajectories": {
        "step": "plain", "estimator": "reinforce", "baseline": "none", "weights": "trajectory",
        "normalise_observations": False, "initial_trajectories": 12, "stepsize": 1e-3,
    },
}  # fmt: skip
CARTPOLE, AGENTS = envs.make("CartPole-v1"), 4


@functools.cache
def mfpo(choice: str) -> Algorithm:
    return algorithms.make("mfpo", Config(**SMALL | CHOICES[choice]), CARTPOLE.spec, AGENTS)


def mfpo_engine(choice: str, engine: str = "inprocess", seed: int = 0) -> Engine:
    return make_engine(engine, mfpo(choice), CARTPOLE, AGENTS, seed, devices=1)


@functools.cache
def trained(choice: str) -> tuple[State, list[RoundLog]]:
    return play(mfpo_engine(choice), 2)


def assert_agree(one: PyTree, two: PyTree, tolerance: float = 2e-5) -> None:
    """Relative to the largest entry of each array."""
    assert jax.tree.structure(one) == jax.tree.structure(two)
    for (path, x), y in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(two), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype, path
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * np.abs(x).max(initial=0), err_msg=str(path))


# (a) the engines agree


@pytest.mark.parametrize(
    "choice",
    [
        "natural, value, observations",
        pytest.param("adam, time", marks=pytest.mark.slow),
        pytest.param("normalised, no server adjustment", marks=pytest.mark.xdist_group("2")),  # share the work
        pytest.param("plain reinforce, initial trajectories", marks=pytest.mark.xdist_group("2")),
    ],
)
def test_mfpo_gives_the_same_with_both_engines(choice: str) -> None:
    state, logs = trained(choice)
    state_, logs_ = play(mfpo_engine(choice, "debug"), 2)
    assert_agree(state, state_)
    for log, log_ in zip(logs, logs_, strict=True):
        assert np.array_equal(log.lengths, log_.lengths)
        assert np.array_equal(log.returns, log_.returns)
        assert log.learn.keys() == log_.learn.keys() and log.merge.keys() == log_.merge.keys()
        assert_agree(log.learn, log_.learn)
        assert log.merge == pytest.approx(log_.merge, rel=2e-5)
        assert log.merge["drift"] > 1e-4  # the agents moved, each its own way: there was something to agree about


def test_the_toy_gives_the_same_with_both_engines() -> None:
    (state, logs), (state_, logs_) = played("inprocess", 4, 0), played("debug", 4, 0)
    assert_agree(state, state_, 1e-6)
    assert same([log.lengths for log in logs], [log.lengths for log in logs_])
    assert_agree([log.returns for log in logs], [log.returns for log in logs_], 1e-6)
    assert same([(log.learn, log.merge) for log in logs], [(log.learn, log.merge) for log in logs_])


@both_engines
def test_what_a_round_reports(engine: str) -> None:
    state, logs = played(engine, 4, 0)
    assert [log.returns.shape for log in logs] == [(K + INITIAL, 4, D), (K, 4, D), (K, 4, D)]
    assert [log.lengths.shape for log in logs] == [log.returns.shape for log in logs]
    assert [log.learn["luck"].shape for log in logs] == [(K + INITIAL, 4), (K, 4), (K, 4)]
    assert all(isinstance(x, np.ndarray) for log in logs for x in (log.returns, log.lengths, *log.learn.values()))
    assert all(isinstance(log.merge["luck"], float) for log in logs)
    lengths = np.concatenate([log.lengths.ravel() for log in logs])
    assert lengths.min() >= 1 and lengths.max() == 6 and len(np.unique(lengths)) > 2
    luck = np.concatenate([log.learn["luck"] for log in logs])  # in the order of the steps, as the agents saw it
    assert np.array_equal(luck.T, state.agents.luck[:, : 3 * K + INITIAL])
    assert state.agents.steps.tolist() == [3 * K + INITIAL] * 4


# (b) whose randomness it is


def test_addresses_are_distinct() -> None:
    where = [w for n in range(4) for w in itertools.product(range(4), repeat=n)]
    numbers = np.array([(p, len(w), *w, *[0] * (3 - len(w))) for p in Purpose for w in where])

    @jax.jit
    @jax.vmap
    def keys(row: Array) -> Array:
        every = [jax.random.key_data(address(jax.random.key(0), row[0], *row[2 : 2 + n])) for n in range(4)]
        return jnp.stack(every)[row[1]]

    found = np.asarray(keys(numbers))
    assert len(np.unique(found, axis=0)) == len(found) == len(Purpose) * (1 + 4 + 16 + 64)
    for seed in range(1, 4):
        other = np.asarray(jax.random.key_data(address(jax.random.key(seed), Purpose.SAMPLE, 1, 2, 3)))
        assert not (found == other).all(axis=1).any()


def test_purposes_have_numbers_of_their_own() -> None:
    assert len({int(purpose) for purpose in Purpose}) == len(Purpose.__members__) == 10


@both_engines
def test_an_agents_draws_do_not_depend_on_how_many_take_part(engine: str) -> None:
    (few, few_logs), (many, many_logs) = played(engine, 2, 0), played(engine, 4, 0)
    assert same(few.agents.name, many.agents.name[:2])
    assert same(few.agents.luck, many.agents.luck[:2])
    for a, b in zip(few_logs, many_logs, strict=True):
        assert same(a.lengths, b.lengths[:, :2])
        np.testing.assert_allclose(a.returns, b.returns[:, :2], rtol=1e-6)


def test_every_draw_of_a_run_is_different() -> None:
    state, logs = played("inprocess", 4, 0)
    draws = [state.agents.name, state.agents.luck[:, : 3 * K + INITIAL], [log.merge["luck"] for log in logs]]
    draws += [log.returns for log in logs]
    flat = np.concatenate([np.ravel(x) for x in draws])
    assert len(np.unique(flat)) == len(flat)


def test_an_agents_draws_do_not_depend_on_the_block_it_is_in() -> None:
    work = federation_round.make_work(TOY)
    step = jax.jit(functools.partial(federation_round.local_step, work, make_sampler(NOISE, TOY, 4)))
    everyone = to_host(federation_round.start(TOY, 4, jax.random.key(0))).agents

    def result(ids: list[int]) -> tuple[ToyAgent, federation_round.StepLog]:
        block = jax.tree.map(lambda x: x[ids], everyone)
        return to_host(step(block, jnp.array(ids), jax.random.key(0), jnp.int32(2), jnp.int32(1)))

    agents, log = result([0, 1, 2, 3])
    for ids in ([3, 1, 0, 2], [2]):
        agents_, log_ = result(ids)
        assert same(agents_.luck, agents.luck[ids]) and same(log_.lengths, log.lengths[ids])
        np.testing.assert_allclose(log_.returns, log.returns[ids], rtol=1e-6)


@pytest.mark.parametrize("large", [True, False])
def test_agents_learn_in_turn_and_large_ones_take_the_place_of_what_they_were(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, one of those is copied at a time."""

    def learn(row: Array, x: Array) -> tuple[Array, Metrics]:
        return row.at[x].add(1.0), {"sum": jnp.sum(row)}

    everyone, size = np.arange(40_000.0).reshape(10, -1), 4 * 4_000
    monkeypatch.setattr(turns, "REPLAY", size if large else size + 1)
    program = jax.jit(functools.partial(turns.in_turn, learn), donate_argnums=0)
    compiled = program.lower(jnp.asarray(everyone), jnp.arange(10)).compile()
    if large:
        assert compiled.memory_analysis().temp_size_in_bytes < 3 * size
    rows, metrics = compiled(jnp.asarray(everyone), jnp.arange(10))
    assert same(rows, everyone + np.eye(10, 4_000))
    np.testing.assert_allclose(metrics["sum"], everyone.sum(axis=1), rtol=1e-6)


def test_round_agent_step_and_purpose_each_change_the_draws() -> None:
    """The trajectories come from SAMPLE, learning from LEARN, at (round, agent, step)."""
    _, logs = played("inprocess", 4, 0)
    seed, sample = jax.random.key(0), jax.jit(make_sampler(NOISE, TOY, 4))
    for number, step, agent in ((1, 0, 0), (1, 2, 3), (3, 1, 2)):
        log = logs[number - 1]
        assert log.learn["luck"][step, agent] == draw(address(seed, Purpose.LEARN, number, agent, step))
        key = address(seed, Purpose.SAMPLE, number, agent, step)
        batch = sample(jnp.zeros(1), key[None], jnp.arange(1), jnp.int32(0))
        np.testing.assert_allclose(log.returns[step, agent], jnp.sum(batch.reward[0], axis=0), rtol=1e-6)
    assert logs[1].merge["luck"] == draw(address(seed, Purpose.MERGE, 2))
    start = toy_engine("inprocess", 4).start()
    assert start.server.x == draw(address(seed, Purpose.INIT))
    assert start.agents.name[3] == draw(address(seed, Purpose.JOIN, 3))


@both_engines
def test_another_seed_gives_other_numbers_everywhere(engine: str) -> None:
    (one, logs), (two, logs_) = played(engine, 4, 0), played(engine, 4, 1)
    used = 3 * K + INITIAL
    for a, b in (
        (one.agents.name, two.agents.name),
        (one.agents.luck[:, :used], two.agents.luck[:, :used]),
        (one.server.x, two.server.x),
        (logs[0].returns, logs_[0].returns),
    ):
        assert (a != b).all()


# (c) the same seed, the same run; (g) a run can be cut anywhere


@both_engines
def test_the_same_seed_gives_the_same_bits(engine: str) -> None:
    assert same(play(make_engine(engine, TOY, NOISE, 4, 0), 3), played(engine, 4, 0))


def test_the_same_seed_gives_the_same_bits_with_mfpo() -> None:
    state, logs = play(mfpo_engine("adam, time"), 2)
    assert same((state, logs), trained("adam, time"))
    other, _ = play(mfpo_engine("adam, time", seed=1), 2)
    assert not same(state.server.theta, other.server.theta)


@both_engines
def test_a_run_cut_in_two_gives_the_same_bits(engine: str) -> None:
    whole, logs = play(toy_engine(engine, 4), 4)
    half, first = play(toy_engine(engine, 4), 2)
    state, second = play(make_engine(engine, TOY, NOISE, 4, 0), 2, half, first=3)  # as a new process would
    assert same(state, whole)
    assert same([*first, *second], logs)


@pytest.mark.parametrize("choice", ["adam, time", "natural, value, observations"])
def test_a_run_of_mfpo_cut_in_two_gives_the_same_bits(choice: str) -> None:
    whole, logs = play(mfpo_engine(choice), 4)
    state, after = play(mfpo_engine(choice), 2, trained(choice)[0], first=3)
    assert same(state, whole)
    assert same([*trained(choice)[1], *after], logs)


# (d) several devices

ON_FOUR_DEVICES = """
import sys
import jax
import numpy as np
from mfpo import algorithms, envs
from mfpo.algorithms.mfpo import Config
from mfpo.federation import make_engine

env = envs.make("CartPole-v1")
algorithm = algorithms.make("mfpo", Config(**{config!r}), env.spec, {agents})
engine = make_engine("inprocess", algorithm, env, {agents}, 0)
state = engine.start()
returns = []
for number in (1, 2):
    state, log = engine.round(state, number)
    returns.append(log.returns)
assert len(state.agents.theta.sharding.device_set) == 4, state.agents.theta.sharding
leaves = {{f"leaf{{i}}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(state))}}
np.savez(sys.argv[1], devices=engine.devices, returns=np.concatenate(returns), **leaves)
"""


def test_several_devices_give_what_one_gives(tmp_path: Path) -> None:
    choice = "adam, time"
    program = ON_FOUR_DEVICES.format(config=SMALL | CHOICES[choice], agents=AGENTS)
    source = str(Path(envs.__file__).parents[2])
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]),
    }
    out = tmp_path / "result.npz"
    subprocess.run([sys.executable, "-c", program, str(out)], env=environment, check=True, timeout=600)
    found = np.load(out)
    state, logs = trained(choice)
    assert found["devices"] == 4
    assert np.array_equal(found["returns"], np.concatenate([log.returns for log in logs]))
    for i, (path, x) in enumerate(jax.tree.leaves_with_path(state)):
        scale = np.abs(x).max(initial=0)
        np.testing.assert_allclose(found[f"leaf{i}"], x, rtol=0, atol=1e-5 * scale, err_msg=str(path))


@pytest.mark.parametrize(
    ("present", "agents", "most", "used"),
    [
        (1, 10, 0, 1), (4, 10, 0, 2), (4, 12, 0, 4), (8, 10, 0, 5), (8, 12, 5, 4), (8, 7, 0, 7), (8, 7, 6, 1),
        (8, 3, 0, 3), (4, 1, 0, 1), (4, 100, 3, 2), (2, 4, 16, 2),
    ],
)  # fmt: skip
def test_the_most_devices_that_divide_the_agents(
    monkeypatch: pytest.MonkeyPatch, present: int, agents: int, most: int, used: int
) -> None:
    monkeypatch.setattr(jax, "device_count", lambda: present)
    assert usable_devices(agents, most) == used


# (e) when it goes wrong


def goes_bad_when(agent_number: int, steps: int, bad: float) -> Algorithm:
    """The toy, but one agent's number turns bad after this many steps."""
    name = draw(address(jax.random.key(0), Purpose.JOIN, agent_number))

    def learn(agent: ToyAgent) -> ToyAgent:
        return agent._replace(x=jnp.where((agent.name == name) & (agent.steps == steps), bad, agent.x))

    return toy(learn)


def raises_at_call(n: int, error: Exception) -> Algorithm:
    """The toy, but the n-th time (from 0) anyone learns, user code raises."""
    calls = itertools.count()

    def on_host(x: np.ndarray) -> np.ndarray:
        if next(calls) == n:
            raise error
        return x

    def learn(agent: ToyAgent) -> ToyAgent:
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return agent._replace(x=jax.pure_callback(on_host, shape, agent.x, vmap_method="sequential"))

    return toy(learn)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_debug_names_round_agent_and_step_of_a_number_that_is_not_finite(bad: float) -> None:
    engine = make_engine("debug", goes_bad_when(agent_number=2, steps=K + INITIAL + 1, bad=bad), NOISE, 3, 0)
    state, _ = engine.round(engine.start(), 1)
    with pytest.raises(Diverged, match="round 2, agent 2, step 0"):
        engine.round(state, 2)


def test_debug_names_round_agent_and_step_of_an_exception() -> None:
    in_round_1 = 3 * (K + INITIAL)
    error = ValueError("the user's own words")
    engine = make_engine("debug", raises_at_call(in_round_1 + 1 * K + 1, error), NOISE, 3, 0)
    state, _ = engine.round(engine.start(), 1)
    with pytest.raises(StepFailed, match="in round 2, agent 1, step 1") as caught:
        engine.round(state, 2)
    assert "the user's own words" in str(caught.value)
    assert caught.value.__cause__ is not None and "the user's own words" in str(caught.value.__cause__)


def test_debug_keeps_the_exception_of_code_that_cannot_even_be_traced() -> None:
    def learn(agent: ToyAgent) -> ToyAgent:
        raise KeyError("typo")

    engine = make_engine("debug", toy(learn), NOISE, 2, 0)
    with pytest.raises(StepFailed, match="KeyError in round 1, agent 0, step 0") as caught:
        engine.round(engine.start(), 1)
    assert isinstance(caught.value.__cause__, KeyError)


def test_debug_lets_our_own_errors_through() -> None:
    def learn(agent: ToyAgent) -> ToyAgent:
        raise ConfigError("--stepsize is -1")

    engine = make_engine("debug", toy(learn), NOISE, 2, 0)
    with pytest.raises(ConfigError) as caught:
        engine.round(engine.start(), 1)
    assert str(caught.value) == "--stepsize is -1"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_inprocess_names_the_round(bad: float) -> None:
    engine = make_engine("inprocess", goes_bad_when(agent_number=1, steps=2 * K + INITIAL, bad=bad), NOISE, 3, 0)
    state, _ = engine.round(engine.start(), 1)
    with pytest.raises(Diverged, match="round 2") as caught:
        engine.round(state, 2)
    assert isinstance(caught.value, MfpoError)


def test_debug_notices_a_return_that_is_not_finite_even_if_nothing_learns_from_it() -> None:
    def step(state: Array, action: Array, key: Key) -> tuple[Array, Array, Array]:
        state, _, terminated = NOISE.step(state, action, key)
        return state, jnp.float32(jnp.nan), terminated

    careless = toy(lambda agent: agent._replace(x=jnp.float32(0.0)))
    with pytest.raises(Diverged, match="round 1, agent 0, step 0"):
        engine = make_engine("debug", careless, NOISE._replace(step=step), 2, 0)
        engine.round(engine.start(), 1)


# (f) what a message weighs

THETA = 4 * 8 + 8 + 8 * 2 + 2  # of the policy network of SMALL on CartPole
PHI = 4 * 6 + 6 + 6 + 1  # of its value network
BARE = {"step": "plain", "baseline": "none", "normalise_observations": False}


@functools.cache
def message_sizes(**choices: Any) -> tuple[int, int]:
    """Bytes up and down as the engine says, after a comparison with the arrays themselves."""
    algorithm = algorithms.make("mfpo", Config(**SMALL | choices), CARTPOLE.spec, AGENTS)
    upload = algorithm.upload(algorithm.join(jax.random.key(0)))
    download = algorithm.download(algorithm.init(jax.random.key(0)))
    up, down = (sum(len(np.asarray(x).tobytes()) for x in jax.tree.leaves(message)) for message in (upload, download))
    for name in ENGINES:
        engine = make_engine(name, algorithm, CARTPOLE, AGENTS, 0)
        assert (engine.bytes_up, engine.bytes_down) == (up, down)
    return up, down


def test_bare_messages_are_policy_direction_and_step_count() -> None:
    assert message_sizes(**BARE) == (4 * 2 * THETA, 4 * (2 * THETA + 1))


@pytest.mark.parametrize(
    ("choice", "floats"),
    [
        ({"step": "normalised"}, 1),  # the largest recent length
        ({"step": "adam"}, 2 * THETA + 1),  # two moments and their count
        ({"step": "adam", "adam_beta1": 0.0}, THETA + 1),  # the first is u, which is sent anyway
        ({"step": "natural"}, THETA + 1),  # the natural direction and the largest recent length
        ({"baseline": "constant"}, 0),
        ({"baseline": "time"}, 0),
        ({"baseline": "value"}, PHI + 3),  # the network; count, mean and spread of the returns
        ({"normalise_observations": True}, 1 + 2 * 4),  # a count; mean and spread per dimension
        ({"step": "natural", "baseline": "value", "normalise_observations": True}, THETA + 1 + PHI + 3 + 9),
    ],
    ids=str,
)
def test_what_an_option_adds_to_the_messages(choice: dict[str, Any], floats: int) -> None:
    (up, down), (up_, down_) = message_sizes(**BARE), message_sizes(**BARE | choice)
    assert (up_ - up, down_ - down) == (4 * floats, 4 * floats)


@pytest.mark.parametrize("step", ["plain", "adam", "natural"])
def test_without_server_adjustment_directions_stay_with_the_agents(step: str) -> None:
    assert message_sizes(**BARE | {"step": step}, server_adjustment=False) == (4 * THETA, 4 * (THETA + 1))


# (h) evaluation


def scores(seed: int, episodes: int = 40, greedy: bool = False) -> np.ndarray:
    return evaluate(TOY, NOISE, jnp.float32(0.0), seed, episodes, greedy)


def test_evaluation_repeats_itself_and_follows_the_seed() -> None:
    assert scores(0).shape == (40,) and len(np.unique(scores(0))) == 40
    assert same(scores(0), scores(0))
    assert not np.isin(scores(0), scores(1)).any()


def test_evaluation_sees_no_episode_of_training() -> None:
    """Nor would it if it had been trained longer: the purposes differ."""
    _, logs = played("inprocess", 4, 0)
    seen = np.concatenate([log.returns.ravel() for log in logs])
    assert not np.isin(np.round(scores(0), 4), np.round(seen, 4)).any()
    keys = [address(jax.random.key(0), p) for p in Purpose]
    sample = jax.jit(pure_sampler(NOISE, TOY.act, 40))
    again = sample(jnp.zeros(len(keys)), jnp.stack(keys), jnp.arange(len(keys)))
    for purpose, returns in zip(Purpose, np.asarray(jnp.sum(again.reward, axis=1)), strict=True):
        assert np.allclose(returns, scores(0), rtol=1e-6) == (purpose is Purpose.EVALUATE)


def test_greedy_evaluation_takes_the_greedy_actions() -> None:
    """Of the same worlds: what the random actions add to every reward, between 0 and 1 a step, is missing."""
    random, greedy = scores(0), scores(0, greedy=True)
    assert same(greedy, scores(0, greedy=True))
    assert (greedy < random).all() and (random < greedy + 6).all()
