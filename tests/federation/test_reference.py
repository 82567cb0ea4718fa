"""The measured gradient: right where it is known, of no influence on training, and the same after a resume."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo.algorithms.mfpo import Config, make
from mfpo.errors import ConfigError, StepFailed
from mfpo.federation import ENGINES, Engine, RoundLog, State, make_engine, measured, robust
from mfpo.federation.reference import Amount, amount
from mfpo.types import Algorithm, Discrete, EnvSpec, HostedEnv, Outcome, Plan, PureEnv

pytestmark = pytest.mark.xdist_group("reference")  # one worker, so that every program is compiled once

slow = pytest.mark.slow
both_engines = pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=slow if name == "debug" else ()) for name in ENGINES]
)

# A bandit whose first arm pays 1: J(b) = -p with p = sigmoid(b_0 - b_1), so that grad J = -p (1 - p) (1, -1).

SPEC = EnvSpec("bandit", (1,), Discrete(2), 1)
BANDIT = PureEnv(
    SPEC,
    reset=lambda key: jnp.zeros(1),
    observe=lambda state: state,
    step=lambda state, action, key: (state, (action == 0).astype(jnp.float32), jnp.array(True)),
)
CONFIG: dict[str, Any] = {
    "local_steps": 2, "trajectories": 4, "gamma": 1.0, "momentum": 0.5, "step": "plain", "stepsize": 0.5,
    "baseline": "none", "normalise_advantages": False, "normalise_observations": False, "hidden": (),
}  # fmt: skip
AGENTS, ROUNDS = 3, 4
NAMES = {"gradient_error", "reference_gradient_norm_squared"}


@functools.cache
def algorithm(**options: Any) -> Algorithm:
    return make(Config(**CONFIG | options), SPEC, AGENTS)


def build(engine: str, env: Any = BANDIT, every: int = 2, trajectories: int = 4000) -> Engine:
    own = robust(algorithm(), "own", AGENTS, 0)
    plain = make_engine(engine, own, env, AGENTS, 0, devices=1)
    return measured(plain, own, env, 0, every, trajectories) if every else plain


def play(engine: Engine, rounds: int, state: State | None = None, first: int = 1) -> tuple[State, list[RoundLog]]:
    state, logs = engine.start() if state is None else state, []
    for number in range(first, first + rounds):
        state, log = engine.round(state, number)
        logs.append(log)
    return jax.tree.map(np.array, state), logs


@functools.cache
def played(engine: str) -> tuple[State, list[RoundLog]]:
    return play(build(engine), ROUNDS)


def same(a: Any, b: Any) -> bool:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def b_of(vector: Any) -> np.ndarray:
    """The part of a parameter vector that belongs to the bias."""
    return np.asarray(algorithm().actor(algorithm().init(jax.random.key(0))._replace(theta=vector)).network[-1].b)


@both_engines
def test_it_is_the_gradient_at_the_mean_policy(engine: str) -> None:
    state, logs = played(engine)
    theta, u = (b_of(jnp.asarray(x)) for x in (state.server.theta, state.server.u))
    b = theta + CONFIG["stepsize"] * u * 0.99 ** (ROUNDS * CONFIG["local_steps"])  # before the last step
    p = 1 / (1 + np.exp(b[1] - b[0]))
    gradient = -p * (1 - p) * np.array([1, -1])
    assert logs[-1].merge["reference_gradient_norm_squared"] == pytest.approx(np.sum(gradient**2), rel=0.1)
    assert logs[-1].merge["gradient_error"] == pytest.approx(np.sum((u - gradient) ** 2), rel=0.1, abs=1e-3)


@both_engines
def test_only_every_few_rounds(engine: str) -> None:
    _, logs = played(engine)
    assert [log.merge.keys() >= NAMES for log in logs] == [False, True, False, True]
    assert [bool(NAMES & log.merge.keys()) for log in logs] == [False, True, False, True]


@both_engines
def test_it_changes_nothing_that_is_trained(engine: str) -> None:
    state, logs = played(engine)
    plain, plain_logs = play(build(engine, every=0), ROUNDS)
    assert same(state, plain)
    for log, plain_log in zip(logs, plain_logs, strict=True):
        left = {name: value for name, value in log.merge.items() if name not in NAMES}
        assert same(log._replace(merge=left), plain_log)


@both_engines
def test_a_run_cut_in_two_gives_the_same_rows(engine: str) -> None:
    whole, logs = played(engine)
    half, first = play(build(engine), 3)
    state, second = play(build(engine), 1, half, first=4)
    assert same((state, [*first, *second]), (whole, logs))


def test_an_algorithm_without_a_direction_is_refused() -> None:
    own = algorithm(server_adjustment=False)
    engine = make_engine("debug", own, BANDIT, AGENTS, 0)
    with pytest.raises(ConfigError, match="--reference-every is 3, but .* leave it out"):
        measured(engine, own, BANDIT, 0, 3, 100)


@pytest.mark.parametrize(
    ("plan", "spec", "trajectories", "expected"),
    [
        (Plan(10, 20), EnvSpec("", (4,), Discrete(2), 500), 1000, Amount(6, 5)),  # 2 · 5 · 6 · 20 = 1200
        (Plan(10, 5), EnvSpec("", (4,), Discrete(2), 500), 1000, Amount(25, 4)),
        (Plan(10, 500), EnvSpec("", (4,), Discrete(2), 500), 1000, Amount(1, 1)),  # as agents do, however many
        (Plan(10, 4), EnvSpec("", (4,), Discrete(2), 500), 2, Amount(1, 1)),
        (Plan(10, 4), EnvSpec("", (84, 84, 4), Discrete(2), 1000), 100, Amount(1, 13)),  # memory
        (Plan(6, 4, segment=50), EnvSpec("", (4,), Discrete(2), 500), 1000, Amount(32, 6)),  # a multiple of K
    ],
)
def test_how_much_is_drawn(plan: Plan, spec: EnvSpec, trajectories: int, expected: Amount) -> None:
    found = amount(plan, spec, trajectories)
    assert found == expected
    assert 2 * found.batches * found.calls * plan.episodes >= trajectories


class Arms:
    """Copies of the bandit on the host. Of more than `AGENTS` agents, that is of the reference, some may be broken."""

    def __init__(self, worlds: list[Any], broken: bool) -> None:
        self.broken = broken and len(worlds) > AGENTS * CONFIG["trajectories"]

    def reset(self, which: Any, seeds: Any) -> Any:
        return np.zeros((len(which), 1), np.float32)

    def step(self, which: Any, action: Any) -> Outcome:
        reward = np.where(action == 0, np.nan if self.broken else 1, 0).astype(np.float32)
        ended = np.ones(len(which), bool)
        return Outcome(np.zeros((len(which), 1), np.float32), reward, ended, ~ended)

    def close(self) -> None:
        pass


def hosted(broken: bool = False) -> HostedEnv:
    return HostedEnv(SPEC, None, lambda worlds, **_: Arms(worlds, broken))


def test_with_a_hosted_environment_it_is_measured_on_the_host() -> None:
    state, logs = play(build("debug", hosted(), every=1), 1)
    b = b_of(jnp.asarray(state.server.theta)) + 0.5 * 0.99**2 * b_of(jnp.asarray(state.server.u))
    p = 1 / (1 + np.exp(b[1] - b[0]))
    assert logs[0].merge["reference_gradient_norm_squared"] == pytest.approx(2 * (p * (1 - p)) ** 2, rel=0.1)


@slow
def test_a_failure_while_measuring_says_so() -> None:
    with pytest.raises(StepFailed, match="a reward that is not finite .*round 1, reference"):
        play(build("debug", hosted(broken=True), every=1), 1)
