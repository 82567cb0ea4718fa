import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfpo.algorithms import mfpo
from mfpo.errors import ConfigError
from mfpo.federation.round import message_bytes
from mfpo.learning import theory
from mfpo.learning.planner import BOUNDS, Assumptions, make_plan, make_plans
from mfpo.learning.theory import Setting
from mfpo.types import Discrete, EnvSpec

assumptions = st.builds(
    Assumptions,
    agents=st.integers(1, 200),
    target_eps=st.floats(1e-4, 10.0),
    bound=st.sampled_from(list(BOUNDS)),
    gap=st.floats(0.01, 1e3),
    sigma=st.floats(0.01, 1e2),
    smoothness=st.floats(0.01, 1e3),
)


def bound_of(a, plan, rounds):
    """The bound with the plan's K and D, after another number of rounds."""
    setting = Setting(a.agents, plan.local_steps, plan.trajectories, a.smoothness, a.sigma)
    return BOUNDS[a.bound](setting, rounds * plan.local_steps, a.gap, plan.initial_trajectories)


def test_by_hand_with_given_k_and_d():
    # α = 1/(16·2·5) for more than 10^6 steps; 2·3·160/T + 16·0.25·160²/(32·4·80·T) + c_ν²·0.25·(T+1)/(160²·8·4·T)
    a = Assumptions(agents=4, local_steps=5, trajectories=16, gap=3.0, sigma=0.5, smoothness=2.0, target_eps=0.1)
    (plan,) = make_plans(a)
    noise = (4 / (24 * 5 * 64**2) + 4) ** 2 * 0.25 / (160**2 * 32)  # 4.9e-6
    steps = (960 + 10 + noise) / (0.1 - noise)
    assert plan.rounds == -(-steps // 5) == 1941
    assert (plan.lam, plan.initial_trajectories, plan.steps) == (None, 80, 9705)
    assert plan.trajectories_per_agent == 80 + 16 * 9704
    assert plan.env_steps_per_agent == plan.trajectories_per_agent * 500
    assert plan.stepsize == pytest.approx(1 / 160)


@settings(deadline=None)
@given(a=assumptions, lam=st.floats(0, 1))
def test_a_plan_meets_its_target_with_no_round_to_spare(a, lam):
    plan = make_plan(a, lam)
    assert plan.bound <= a.target_eps
    assert bound_of(a, plan, plan.rounds) == pytest.approx(plan.bound)
    before = make_plan(dataclasses.replace(a, local_steps=plan.local_steps, trajectories=plan.trajectories), lam)
    assert before.rounds <= plan.rounds
    if before.rounds > 1:
        assert bound_of(a, before, before.rounds - 1) > a.target_eps


@settings(deadline=None)
@given(a=assumptions, lam=st.floats(0, 1))
def test_k_and_d_are_the_theorems_rounded(a, lam):
    plan = make_plan(a, lam)
    assert abs(plan.trajectories - theory.trajectories_order(plan.steps, a.agents, lam)) <= 0.5 + 1e-6
    assert abs(plan.local_steps - theory.local_steps_order(plan.steps, a.agents, lam)) <= 0.5 + 1e-6
    assert plan.initial_trajectories == plan.trajectories * plan.local_steps


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_costs_grow_with_the_target_as_the_theorem_says(bound, lam):
    """Rounds as 1/ε, trajectories per agent as ε^(-3/2) / N, up to logarithms and rounding."""
    coarse = make_plan(Assumptions(agents=4, target_eps=1e-5, bound=bound), lam)
    fine = make_plan(Assumptions(agents=4, target_eps=1e-7, bound=bound), lam)
    assert fine.rounds / coarse.rounds == pytest.approx(100, rel=0.4)
    assert fine.trajectories_per_agent / coarse.trajectories_per_agent == pytest.approx(1000, rel=0.6)
    more = make_plan(Assumptions(agents=40, target_eps=1e-7, bound=bound), lam)
    assert fine.trajectories_per_agent / more.trajectories_per_agent == pytest.approx(10, rel=0.1)


def test_bytes_are_those_of_the_messages():
    config = mfpo.Config(hidden=(16, 16), step="plain", baseline="none", normalise_observations=False)
    up, down = message_bytes(mfpo.make(config, EnvSpec("CartPole", (4,), Discrete(2), 500), 3))
    plan = make_plan(Assumptions(), 0.5)
    assert (plan.bytes_up, plan.bytes_down) == (plan.rounds * up, plan.rounds * down)


def test_the_worst_case_of_the_lemmas():
    a = Assumptions(smoothness=0.0, horizon=2, reward_bound=3.0, gamma=0.5, beta1=2.0, beta2=5.0, sigma_w=1.0)
    problem = theory.Problem(2, 3.0, 0.5, 2.0, 5.0, 1.0)
    assert a.overall_smoothness == theory.overall_smoothness(problem) == pytest.approx(322.44, abs=0.01)


def test_what_cannot_be_planned():
    with pytest.raises(ConfigError, match="divide by 1 - γ"):
        Assumptions(smoothness=0.0, gamma=1.0)
    with pytest.raises(ConfigError, match="--lambdas is empty"):
        Assumptions(lambdas=())
    with pytest.raises(ConfigError, match="more than 1e\\+15 rounds"):
        make_plans(Assumptions(target_eps=1e-300))
