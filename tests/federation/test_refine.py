"""A server that refines: as often as its algorithm says, in a world and with draws of its own, in every engine."""

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo import algorithms, envs
from mfpo.errors import Diverged, StepFailed
from mfpo.federation import ENGINES, Engine, RoundLog, State, make_engine
from mfpo.federation.round import Purpose, address
from mfpo.rollout import pure_sampler
from mfpo.types import Algorithm, Array, Box, EnvSpec, HostedEnv, Key, Metrics, Outcome, Plan, PureEnv, Trajectories

pytestmark = pytest.mark.xdist_group("refine")  # one worker, so that every program is compiled once

both_engines = pytest.mark.parametrize("engine", ENGINES)

# A world whose reward is a number of its own plus noise, and an algorithm that counts and adds up.

AGENTS, D, B, MOST = 3, 2, 4, 3
WANTED = (2, 0, 9, 1)  # refinements asked for in rounds 1, 2, 3, 4; the third asks for more than there may be
DONE = (2, 0, MOST, 1)
HORIZON = 5


class World(NamedTuple):
    bonus: float = 10.0


def draw(key: Key) -> Array:
    """A number between 0 and 1 that tells which key it was made from."""
    return (jax.random.key_data(key)[1] >> 8).astype(jnp.float32) * 2.0**-24


def at(world: World) -> PureEnv:
    def step(state: Array, action: Array, key: Key) -> tuple[Array, Array, Array]:
        luck = draw(key)
        return state + 1, world.bonus + 0.01 * luck, luck < 0.1

    spec = EnvSpec("Bonus", observation_shape=(1,), action=Box((-1.0,), (1.0,)), horizon=HORIZON)
    return PureEnv(spec, lambda key: draw(key)[None], lambda state: state, step, world=World(), at=at)


USUAL = at(World())


class Server(NamedTuple):
    x: Array
    rounds: Array
    remaining: Array
    calls: Array
    luck: Array  # [16] of refining, a number per call


def toy(refines: bool = True, bad_at: int = -1, on_refine: Any = None) -> Algorithm:
    def merge(server: Server, uploads: Array, mask: Array, key: Key) -> tuple[Server, Metrics]:
        wanted = jnp.array(WANTED)[server.rounds]
        return server._replace(x=server.x + jnp.mean(uploads), rounds=server.rounds + 1, remaining=wanted), {
            "wanted": wanted
        }

    def refine(server: Server, batch: Trajectories, key: Key) -> tuple[Server, Metrics]:
        assert batch.reward.shape[1] == B
        if on_refine:
            jax.debug.callback(on_refine)
        x = server.x + jnp.mean(batch.score)
        x = jnp.where(server.calls == bad_at, jnp.nan, x)
        luck = server.luck.at[server.calls].set(draw(key))
        return server._replace(x=x, remaining=server.remaining - 1, calls=server.calls + 1, luck=luck), {
            "call": server.calls
        }

    def act(params: Array, obs: Array, key: Key) -> tuple[Array, Array]:
        return (draw(key)[None],) * 2

    return Algorithm(
        plan=Plan(1, D, server_steps=MOST, server_episodes=B) if refines else Plan(1, D),
        init=lambda key: Server(draw(key), jnp.int32(0), jnp.int32(0), jnp.int32(0), jnp.zeros(16)),
        join=lambda key: jnp.float32(0.0),
        download=lambda server: server.x,
        receive=lambda agent, x: x,
        actor=lambda side: side,
        act=act,
        greedy=lambda params, obs: jnp.zeros(1),
        learn=lambda agent, batch, key: (agent + jnp.mean(batch.score), {}),
        upload=lambda agent: agent,
        merge=merge,
        refine=refine if refines else None,
        refinements=(lambda server: server.remaining) if refines else None,
    )


TOY = toy()


def play(engine: Engine, rounds: int, state: State | None = None, first: int = 1) -> tuple[State, list[RoundLog]]:
    state, logs = engine.start() if state is None else state, []
    for number in range(first, first + rounds):
        state, log = engine.round(state, number)
        logs.append(log)
    return jax.tree.map(np.array, state), logs


@functools.cache
def played(engine: str, env: Any = USUAL) -> tuple[State, list[RoundLog]]:
    return play(make_engine(engine, TOY, env, AGENTS, 0), len(WANTED))


def same(a: Any, b: Any) -> bool:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@both_engines
def test_it_refines_as_often_as_it_wants_and_no_more_than_planned(engine: str) -> None:
    state, logs = played(engine)
    assert state.server.calls == sum(DONE)
    assert [log.merge["server_trajectories"] for log in logs] == [B * n for n in DONE]
    assert [log.merge["wanted"] for log in logs] == list(WANTED)
    calls = np.split(np.arange(sum(DONE)), np.cumsum(DONE)[:-1])
    assert [log.merge.get("call") for log in logs] == [x.mean() if x.size else None for x in calls]


@both_engines
def test_what_the_server_sampled_is_reported_apart_from_the_agents(engine: str) -> None:
    _, logs = played(engine)
    for log, done in zip(logs, DONE, strict=True):
        assert log.returns.shape == log.lengths.shape == (1, AGENTS, D)
        steps = log.merge["server_env_steps"]
        assert B * done <= steps <= B * done * HORIZON
        if done:
            assert log.merge["server_return_mean"] == pytest.approx(10.005 * steps / (B * done), rel=1e-3)
        else:
            assert steps == 0 and "server_return_mean" not in log.merge


def test_the_engines_agree() -> None:
    (state, logs), (state_, logs_) = played("inprocess"), played("debug")
    np.testing.assert_allclose(state.server.x, state_.server.x, rtol=1e-6)
    assert same(state.server._replace(x=0), state_.server._replace(x=0))
    for log, log_ in zip(logs, logs_, strict=True):
        assert log.merge == pytest.approx(log_.merge, rel=1e-6)
        assert same(log.lengths, log_.lengths)


def test_every_draw_has_an_address_of_its_own() -> None:
    state, logs = played("inprocess")
    where = [(number, step) for number, done in enumerate(DONE, 1) for step in range(done)]
    seed = jax.random.key(0)
    expected = [float(draw(address(seed, Purpose.REFINE, *place, 1))) for place in where]
    assert state.server.luck[: len(where)].tolist() == expected and len(set(expected)) == len(where)
    sample = jax.jit(pure_sampler(USUAL, TOY.act, B))
    keys = jnp.stack([address(seed, Purpose.REFINE, 3, step, 0) for step in range(MOST)])
    scores = sample(jnp.zeros(MOST), keys, jnp.zeros(MOST, int)).score
    assert logs[2].merge["server_return_mean"] == pytest.approx(float(jnp.mean(scores)), rel=1e-6)
    assert len(np.unique(jnp.mean(scores, axis=1))) == MOST


@both_engines
def test_where_the_agents_share_a_world_it_is_the_servers_too(engine: str) -> None:
    _, logs = played(engine, USUAL._replace(worlds=(World(3.0),) * AGENTS))
    merge = logs[0].merge
    per_step = merge["server_return_mean"] * merge["server_trajectories"] / merge["server_env_steps"]
    assert per_step == pytest.approx(3.005, abs=0.005)


@both_engines
def test_where_the_agents_worlds_differ_the_server_lives_in_the_usual_one(engine: str) -> None:
    different = USUAL._replace(worlds=tuple(World(float(bonus)) for bonus in range(1, 1 + AGENTS)))
    _, logs = played(engine, different)
    for log in logs:
        per_step = np.sum(log.returns, axis=(0, 2)) / np.sum(log.lengths, axis=(0, 2))
        np.testing.assert_allclose(per_step, [1.005, 2.005, 3.005], atol=0.005)
    log = logs[0]
    per_step = log.merge["server_return_mean"] * log.merge["server_trajectories"] / log.merge["server_env_steps"]
    assert per_step == pytest.approx(10.005, abs=0.005)
    assert log.merge["server_return_mean"] == pytest.approx(played(engine)[1][0].merge["server_return_mean"], rel=1e-6)


@both_engines
def test_a_run_cut_in_two_gives_the_same_bits(engine: str) -> None:
    whole, logs = played(engine)
    half, first = play(make_engine(engine, TOY, USUAL, AGENTS, 0), 2)
    state, second = play(make_engine(engine, TOY, USUAL, AGENTS, 0), 2, half, first=3)
    assert same(state, whole)
    assert same([*first, *second], logs)


def test_the_compiled_loop_really_stops() -> None:
    """A program that went through all MOST steps and threw some away would call more often."""
    calls: list[int] = []
    engine = make_engine("inprocess", toy(on_refine=lambda: calls.append(1)), USUAL, AGENTS, 0)
    play(engine, len(WANTED))
    jax.effects_barrier()
    assert len(calls) == sum(DONE)


@both_engines
def test_an_algorithm_that_does_not_refine_says_nothing_of_it(engine: str) -> None:
    _, logs = play(make_engine(engine, toy(refines=False), USUAL, AGENTS, 0), 1)
    assert list(logs[0].merge) == ["wanted"]


def test_debug_names_the_servers_step() -> None:
    engine = make_engine("debug", toy(bad_at=3), USUAL, AGENTS, 0)  # the second call of round 3
    with pytest.raises(Diverged, match="round 3, server, step 1"):
        play(engine, 3)


def test_inprocess_notices_that_refining_diverged() -> None:
    engine = make_engine("inprocess", toy(bad_at=3), USUAL, AGENTS, 0)
    with pytest.raises(Diverged, match="round 3"):
        play(engine, 3)


# Environments outside the program


class Line:
    """Copies of such a world on the host, whose episodes have two to four steps."""

    opened: list[list[Any]] = []  # noqa: RUF012

    def __init__(self, worlds: list[Any], learning: bool) -> None:
        self.bonus = np.array([world.get("bonus", 10.0) for world in worlds])
        self.steps, self.luck = np.zeros(len(worlds), int), np.zeros(len(worlds))
        Line.opened.append(self.bonus.tolist())

    def reset(self, which: Any, seeds: Any) -> Any:
        self.steps[which] = 0
        self.luck[which] = (seeds % np.uint64(1000)).astype(float) / 1000
        return self.luck[which][:, None].astype(np.float32)

    def step(self, which: Any, action: Any) -> Outcome:
        self.steps[which] += 1
        reward = (self.bonus[which] + 0.01 * self.luck[which]).astype(np.float32)
        none = np.zeros(len(which), bool)
        return Outcome(np.ones((len(which), 1), np.float32), reward, self.steps[which] > 2 + 2 * self.luck[which], none)

    def close(self) -> None:
        pass


def hosted(worlds: tuple[Any, ...] = (), copies: type[Line] = Line) -> HostedEnv:
    return HostedEnv(USUAL.spec, None, lambda worlds, learning=False, **_: copies(worlds, learning), worlds=worlds)


@both_engines
@pytest.mark.slow
def test_with_a_hosted_environment_the_server_refines_on_the_host(engine: str) -> None:
    Line.opened.clear()
    worlds = tuple((("bonus", float(bonus)),) for bonus in range(1, 1 + AGENTS))
    state, logs = play(make_engine(engine, TOY, hosted(worlds), AGENTS, 0), len(WANTED))
    assert sorted(Line.opened) == sorted([[1.0, 1.0, 2.0, 2.0, 3.0, 3.0], [10.0] * B])
    assert state.server.calls == sum(DONE)
    assert [log.merge["server_trajectories"] for log in logs] == [B * n for n in DONE]
    for log, done in zip(logs, DONE, strict=True):
        if done:
            per_episode = log.merge["server_env_steps"] / (B * done)
            assert log.merge["server_return_mean"] == pytest.approx(10.005 * per_episode, rel=1e-3)
    again, logs_ = play(make_engine(engine, TOY, hosted(worlds), AGENTS, 0), len(WANTED))
    assert same((again, logs_), (state, logs))


def test_the_engines_agree_on_a_hosted_environment() -> None:
    results = [play(make_engine(engine, TOY, hosted(), AGENTS, 0), len(WANTED)) for engine in ENGINES]
    (state, logs), (state_, logs_) = results
    np.testing.assert_allclose(state.server.x, state_.server.x, rtol=1e-6)
    for log, log_ in zip(logs, logs_, strict=True):
        assert log.merge == pytest.approx(log_.merge, rel=1e-6)


def test_a_failure_in_the_servers_environment_says_so() -> None:
    class Broken(Line):
        def step(self, which: Any, action: Any) -> Outcome:
            outcome = super().step(which, action)
            return outcome._replace(reward=outcome.reward * np.nan) if 10.0 in self.bonus else outcome

    worlds = tuple((("bonus", float(bonus)),) for bonus in range(1, 1 + AGENTS))
    with pytest.raises(StepFailed, match="a reward that is not finite .*round 1, server, step 0"):
        play(make_engine("inprocess", TOY, hosted(worlds, Broken), AGENTS, 0), 1)


@both_engines
def test_segments_of_the_server_in_which_nothing_ended_have_no_return(engine: str) -> None:
    class Longer(Line):
        """Half of the games go on for longer than a segment, the others have three steps."""

        def reset(self, which: Any, seeds: Any) -> Any:
            return super().reset(which, (self.luck[which] * 1000).astype(np.uint64) if seeds is None else seeds)

        def step(self, which: Any, action: Any) -> Outcome:
            outcome = super().step(which, action)
            return outcome._replace(terminated=outcome.terminated & (self.luck[which] < 0.5))

    def refine(server: Server, batch: Trajectories, key: Key) -> tuple[Server, Metrics]:
        return server._replace(remaining=server.remaining - 1), {}

    plan, env = TOY.plan._replace(segment=4), hosted((), Longer)
    env = env._replace(spec=env.spec._replace(horizon=100))
    segments = TOY._replace(plan=plan, learn=lambda agent, batch, key: (agent, {}), refine=refine)
    (seen,) = (log.merge for log in play(make_engine(engine, segments, env, AGENTS, 0), 1)[1])
    assert (seen["server_trajectories"], seen["server_env_steps"]) == (B * DONE[0], 4 * B * DONE[0]), seen
    assert seen["server_return_mean"] == pytest.approx(30.0, abs=0.1)


# FedPG-BR itself

SMALL: dict[str, Any] = {
    "trajectories": 4, "least_trajectories": 2, "server_trajectories": 3, "hidden": (6,), "value_hidden": (5,),
    "value_updates": 3, "value_samples": 32, "sigma": 5.0,
}  # fmt: skip
CARTPOLE = envs.make("CartPole-v1")


@functools.cache
def fedpg_br() -> Algorithm:
    return algorithms.make("fedpg_br", algorithms.config_class("fedpg_br")(**SMALL), CARTPOLE.spec, 4)


@functools.cache
def trained() -> tuple[State, list[RoundLog]]:
    return play(make_engine("inprocess", fedpg_br(), CARTPOLE, 4, 0, devices=1), 3)


@pytest.mark.slow
def test_fedpg_br_gives_the_same_with_both_engines() -> None:
    (state, logs), (state_, logs_) = trained(), play(make_engine("debug", fedpg_br(), CARTPOLE, 4, 0), 3)
    assert sum(log.merge["server_trajectories"] for log in logs) > 0
    for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(state_), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-4 * np.abs(x).max(initial=0))
    for log, log_ in zip(logs, logs_, strict=True):
        assert same(log.lengths, log_.lengths)
        assert log.merge == pytest.approx(log_.merge, rel=1e-3)


def test_a_run_of_fedpg_br_cut_in_two_gives_the_same_bits() -> None:
    engine = make_engine("inprocess", fedpg_br(), CARTPOLE, 4, 0, devices=1)
    half, first = play(engine, 1)
    state, second = play(engine, 2, half, first=2)
    assert same((state, [*first, *second]), trained())


ON_TWO_DEVICES = """
import sys
import jax
import numpy as np
from mfpo import algorithms, envs
from mfpo.federation import make_engine

env = envs.make("CartPole-v1")
config = algorithms.config_class("fedpg_br")(**{config!r})
engine = make_engine("inprocess", algorithms.make("fedpg_br", config, env.spec, 4), env, 4, 0)
state = engine.start()
for number in (1, 2, 3):
    state, log = engine.round(state, number)
leaves = {{f"leaf{{i}}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(state))}}
np.savez(sys.argv[1], devices=engine.devices, **leaves)
"""


@pytest.mark.slow
def test_two_devices_give_what_one_gives(tmp_path: Path) -> None:
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(Path(envs.__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    }
    out = tmp_path / "result.npz"
    program = ON_TWO_DEVICES.format(config=SMALL)
    subprocess.run([sys.executable, "-c", program, str(out)], env=environment, check=True, timeout=600)
    found = np.load(out)
    assert found["devices"] == 2
    for i, x in enumerate(jax.tree.leaves(trained()[0])):
        np.testing.assert_allclose(found[f"leaf{i}"], x, rtol=0, atol=1e-4 * np.abs(x).max(initial=0))
