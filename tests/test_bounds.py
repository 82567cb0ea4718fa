"""The analysis against runs of the real algorithm in a world whose gradient is computed exactly."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo.errors import RunError
from mfpo.federation import make_engine
from mfpo.learning import theory
from mfpo.learning.planner import Pilot
from mfpo.runs import pilot

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
RUNS, ROUNDS = 64, 12


@pytest.fixture(scope="module")
def study():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "studies")
        yield importlib.import_module("bounds")


@pytest.fixture(scope="module")
def exact(study):
    return sys.modules["exact_world"]


@pytest.fixture(scope="module")
def runs(study):
    """(setting, rows [runs, T], last states) of short runs."""
    s = study.make_setting(agents=3, local_steps=3, trajectories=2)
    rows, states = jax.jit(jax.vmap(study.make_run(s, ROUNDS)))(jnp.arange(RUNS))
    return s, rows, states


def test_the_exact_gradient_by_three_ways(exact):
    theta = jnp.array([0.3, -0.2, 0.5, 0.1, -0.4, 0.2, 0.6, -0.1])
    gradient = jax.grad(exact.objective)(theta)
    np.testing.assert_allclose(exact.moments(theta, theta).gradient, gradient, atol=1e-6)
    nudge = 1e-2 * jnp.eye(8)
    differences = [float(exact.objective(theta + e) - exact.objective(theta - e)) / 2e-2 for e in nudge]
    np.testing.assert_allclose(differences, gradient, atol=1e-4)


def test_moments_by_hand(exact):
    """A uniform policy: 1/4 of every pair of actions; the weights towards a known policy have a known variance."""
    uniform = jnp.zeros(8)
    # μ·mean reward: 0.4·0.5 + 0.4·0.55 + 0.2·0.35 = 0.49; then γ times the mean reward of the second state
    second = exact.FIRST @ exact.NEXT.mean(axis=1) @ np.array([0.5, 0.55, 0.35])
    assert float(exact.objective(uniform)) == pytest.approx(-(0.49 + 0.2 * second), rel=1e-6)
    bias = jnp.array([0, 0, 0, 0, 0, 0, np.log(3.0), 0.0])  # π = (3/4, 1/4) in every state
    table = jnp.exp(exact.log_pi(bias))
    assert sorted(np.asarray(table[0]).tolist()) == pytest.approx([0.25, 0.75])
    # E[w²] per step: (9/16 + 1/16) / (1/2) = 5/4; two independent steps: 25/16
    assert float(exact.moments(uniform, bias).weight_variance) == pytest.approx(25 / 16 - 1, rel=1e-5)


def test_best_objective_is_below_every_policys(exact):
    thetas = 10 * jax.random.normal(jax.random.key(0), (500, 8))
    values = jax.vmap(exact.objective)(thetas)
    assert exact.best_objective() <= float(values.min()) <= exact.best_objective() + 0.05


def test_the_recorded_run_is_the_engines(study, exact, runs):
    s, _, states = runs
    engine = make_engine("inprocess", study.make_algorithm(s), exact.world(), s.agents, seed=5, devices=1)
    state = engine.start()
    for number in range(1, ROUNDS + 1):
        state, _ = engine.round(state, number)
    np.testing.assert_allclose(states.server.theta[5], state.server.theta, atol=1e-6)
    np.testing.assert_allclose(states.server.u[5], state.server.u, atol=1e-5)


def test_the_constants_hold(study, exact, runs):
    """Along the runs: the assumptions, and what the lemmas derive from them for J and the weights."""
    s, rows, _ = runs
    seen = study.assumptions(jax.tree.map(np.asarray, rows))
    assert 0.5 * s.sigma < seen["sigma"] <= s.sigma
    assert 0 < seen["sigma_w"] <= exact.SIGMA_W
    assert 0 < seen["smoothness"] <= theory.smoothness(exact.PROBLEM)
    assert 0 < seen["weight_growth"] <= theory.weight_growth(exact.PROBLEM)


def test_measured_errors_lie_below_the_lemmas(study, runs):
    s, rows, _ = runs
    curves, facts = study.analyse(s, rows)
    assert curves["t"][-1] == ROUNDS * s.local_steps
    assert 0.1 < facts["largest"]["gradient error"] <= 1
    assert 0 < facts["largest"]["consensus error"] <= 1
    assert 0.5 < facts["largest"]["drift"] <= 1 + 1e-3
    assert facts["largest"]["average squared gradient"] <= 1
    assert facts["synchronisation"] < 1e-3


def test_the_initial_direction_has_the_variance_of_its_trajectories(exact, runs):
    """The lemma's own start, exactly: E||ε̄||² = variance / (D̃N)."""
    s, rows, _ = runs
    variance = float(jnp.mean(jax.vmap(lambda t: exact.moments(t, t).variance)(rows.theta[:, 0])))
    measured = float(rows.error[:, 0].mean())
    assert measured == pytest.approx(variance / (s.trajectories * s.local_steps * s.agents), rel=0.35)


def test_a_pilot_estimates_what_enumeration_gives(exact, monkeypatch):
    """With GPOMDP, from the nearly uniform first policy one step down the exact gradient."""
    monkeypatch.setattr(pilot, "SETTINGS", pilot.SETTINGS | {"hidden": ()})
    monkeypatch.setattr("mfpo.envs.make", lambda *args: exact.world())
    plan = Pilot("three states", pilot_trajectories=4000, pilot_rounds=2, pilot_step=0.1)
    found = pilot.estimate(plan, exact.GAMMA)

    assert 0.02 < found.step <= 0.1  # shorter than asked for: the step rule goes by the norms of single gradients
    uniform = jnp.zeros(8)
    downhill = jax.grad(exact.objective)(uniform)
    moved = -found.step * downhill / jnp.linalg.norm(downhill)
    (p, g), (p_moved, g_moved) = (gpomdp(exact, theta) for theta in (uniform, moved))
    change = g_moved - (p / p_moved)[:, None] * g
    assert found.sigma == pytest.approx(np.sqrt(p @ np.sum((g - p @ g) ** 2, axis=1)), rel=0.04)
    assert found.smoothness == pytest.approx(np.sqrt(p_moved @ np.sum(change**2, axis=1)) / found.step, rel=0.06)
    assert found.sigma_w == pytest.approx(np.sqrt(exact.moments(moved, uniform).weight_variance), rel=0.06)
    assert (found.horizon, found.parameters, found.pilot_trajectories) == (2, 8, 8000)
    assert found.smoothness <= theory.overall_smoothness(exact.PROBLEM)


def gpomdp(exact, theta):
    """Probability and gradient estimate of every trajectory."""
    table, jacobian = np.exp(np.asarray(exact.log_pi(theta))), np.asarray(jax.jacobian(exact.log_pi)(theta))
    p, g = [], []
    for s1, a1, s2, a2 in np.ndindex(3, 2, 3, 2):
        late = exact.GAMMA * exact.REWARD[s2, a2]
        p.append(exact.FIRST[s1] * table[s1, a1] * exact.NEXT[s1, a1, s2] * table[s2, a2])
        g.append(-(exact.REWARD[s1, a1] + late) * jacobian[s1, a1] - late * jacobian[s2, a2])
    return np.array(p), np.array(g)


def test_a_pilot_that_finds_no_gradient_says_so(exact, monkeypatch):
    still = SimpleNamespace(theta=np.zeros((2, 8)), u=np.zeros((2, 8)))
    state = SimpleNamespace(agents=still, server=SimpleNamespace(u=np.zeros(8)))
    engine = SimpleNamespace(start=lambda: state, round=lambda state, number: (state, None))
    monkeypatch.setattr("mfpo.envs.make", lambda *args: exact.world())
    monkeypatch.setattr("mfpo.federation.make_engine", lambda *args: engine)
    with pytest.raises(RunError, match="found no gradient; give more --pilot-trajectories"):
        pilot.estimate(Pilot("three states", pilot_trajectories=2, pilot_rounds=2), exact.GAMMA)


def test_the_committed_results_lie_below_the_bounds():
    results = json.loads((ROOT / "results" / "bounds.json").read_text())
    assert all(ratio <= 1 + 1e-3 for ratio in results["many"]["largest"].values())
    assert results["long"]["largest"]["average squared gradient"] <= 1
    curves = results["long"]["curves"]
    assert curves["schedule_bound"][-1] < curves["gradient"][0], "the bound says something in the end"
