"""The constants and bounds against numbers worked out by hand, and the inequalities the proof relies on."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfpo.learning import schedules, theory
from mfpo.learning.theory import Problem, Setting

# H=2, R=3, gamma=1/2, beta1=2, beta2=5, sigma_w=1, b=1
SMALL = Problem(horizon=2, reward_bound=3.0, gamma=0.5, beta1=2.0, beta2=5.0, sigma_w=1.0, baseline=1.0)
# N=2, K=3, D=4: DN=8
SETTING = Setting(agents=2, local_steps=3, trajectories=4, smoothness=2.0, sigma=0.5)

problems = st.builds(
    Problem,
    horizon=st.integers(1, 2000),
    reward_bound=st.floats(1e-3, 1e3),
    gamma=st.floats(0.0, 0.9999),
    beta1=st.floats(1e-2, 1e2),
    beta2=st.floats(0, 1e2),
    sigma_w=st.floats(0, 1e2),
    baseline=st.floats(0, 1e2),
)
any_setting = st.builds(
    Setting,
    agents=st.integers(1, 10_000),
    local_steps=st.integers(1, 1000),
    trajectories=st.integers(1, 1000),
    smoothness=st.floats(1e-6, 1e9),
    sigma=st.floats(1e-6, 1e6),
)
times = st.one_of(st.integers(1, 1000), st.floats(3, 18).map(lambda x: int(10**x)))
SLACK = 1 + 1e-9
UNHURRIED = settings(deadline=None)


def test_constants_by_hand():
    assert theory.smoothness(SMALL) == pytest.approx(2 * 3 * (2 * 4 + 5) / 0.5)  # 156
    assert theory.estimator_smoothness(SMALL) == pytest.approx(2 * 5 * 4 / 0.5)  # 80
    assert theory.estimator_bound(SMALL) == pytest.approx(2 * 2 * 4 / 0.5)  # 32
    assert theory.weight_growth(SMALL) == pytest.approx(2 * (2 * 2 * 4 + 5) * 2)  # 84
    assert theory.corrected_smoothness(SMALL) == pytest.approx(math.sqrt(2 * (6400 + 1024 * 84)))  # sqrt(184832)
    assert theory.overall_smoothness(SMALL) == pytest.approx(429.9209, abs=1e-3)


def test_the_larger_smoothness_counts():
    flat = Problem(horizon=1, reward_bound=1.0, gamma=0.0, beta1=0.1, beta2=5.0, sigma_w=0.0)
    assert theory.smoothness(flat) == pytest.approx(5.01)
    assert theory.corrected_smoothness(flat) == pytest.approx(math.sqrt(2 * (25 + 0.01 * 5.02)))  # 7.08
    bold = flat._replace(beta2=0.001, horizon=1, baseline=0.0)
    assert theory.overall_smoothness(bold) == max(theory.smoothness(bold), theory.corrected_smoothness(bold))


def test_schedule_constants_by_hand():
    assert SETTING.c_nu == pytest.approx(4 / (24 * 3 * 64) + 64 * 4 / 8)  # 32.00086..
    assert SETTING.c_alpha == pytest.approx(4 ** (2 / 3) / 2)
    assert theory.c_t(SETTING, 100) == pytest.approx((4096 * 27 * 64 - 100) * 0.25)
    # far out: c_nu^3 c_alpha^3 / (2^12 27 8) = 32.00086^3 * 2 / 884736 = 0.0741 < 2 sigma^2 = 0.5
    assert theory.c_t(SETTING, 10**9) == 0.5
    assert theory.alpha(SETTING, 0) == pytest.approx(1 / (16 * 2 * 3))
    assert theory.alpha(SETTING, 10**9) == pytest.approx(4 ** (2 / 3) / 2 / (0.5 + 0.25e9) ** (1 / 3))
    assert theory.nu(SETTING, 1) == pytest.approx(1 - SETTING.c_nu / 96**2)


def test_the_first_part_of_c_t_can_rule():
    alone = Setting(agents=1, local_steps=1, trajectories=1, smoothness=3.0, sigma=2.0)
    by_hand = (9 / 24 + 64 * 9) ** 3 * 4 / 27 / (4096 * 27)
    assert theory.c_t(alone, 10**6) == pytest.approx(by_hand)
    assert by_hand > 2 * 4


def test_bounds_by_hand():
    # T=1000, gap=5, D~=12, DN=8: (DN)^(2/3)=4, T^(2/3)=100
    descent = (32 * 2 * 3 / 1000 + 2 * 2 / 400) * 5
    noise = (2**15 * 3 / 1000 + 2**11 / 400) * (1 + math.log(1001)) * 0.25
    first = (8 * 4 * 9 / 12000 + 4 * 3 / (24 * 400)) * 0.25
    assert theory.gradient_bound(SETTING, 1000, 5.0, 12) == pytest.approx(descent + noise + first)
    # the stepsize is 1/96 up to T: 2*5*96/1000, 4*0.25*96*96/(32*4*12*1000), c_nu^2*0.25*1001/96^3*96/(32*1000)
    by_hand = 0.96 + 9216 / 1_536_000 + SETTING.c_nu**2 * 0.25 * 1001 / 96**2 / 32_000
    assert theory.schedule_bound(SETTING, 1000, 5.0, 12) == pytest.approx(by_hand)


def test_lemmas_by_hand():
    s, a = SETTING, 1 / 96
    nu = 1 - s.c_nu * a**2
    error = nu**2 * 0.5 + 4 * 4 * nu**2 * a**2 * 3 / 8 + 2 * 0.25 * (1 - nu) ** 2 / 8
    error += 8 * 2 * 4 * nu**2 * a**2 * 0.7 / (3 * 4 * 4)
    assert theory.gradient_error_bound(s, 7, error=0.5, direction=3.0, consensus=0.7) == pytest.approx(error)
    spread = 32 * (1 - nu) ** 2 * 4 * 9
    right = nu**2 * (1 + 1 / 3 + 8 * a**2 * 4 * 3) * 0.7 + spread * 0.01
    right += 8 * a**2 * 4 * nu**2 * 2 * 3 * 3.0 + 8 * (1 - nu) ** 2 * 0.25 * 2 * 3 / 4
    found = theory.consensus_error_bound(s, 7, consensus=0.7, direction=3.0, earlier=0.01)
    assert found == pytest.approx(right / (1 - spread * a**2))
    assert found == pytest.approx(right + spread * a**2 * found)  # as printed, with delta_t on the right
    assert theory.drift_bound(s, [0.1, 0.2], [3.0, 5.0]) == pytest.approx(2 * (0.01 * 3 + 0.04 * 5))


def test_orders_by_hand():
    assert theory.communication_complexity(0.01) == pytest.approx(100)
    assert theory.interaction_complexity(0.01, agents=5, horizon=200) == pytest.approx(200 * 1000 / 5)
    assert theory.local_steps_order(64_000, 8, lam=1.0) == pytest.approx(10)
    assert theory.local_steps_order(64_000, 8, lam=0.0) == 1
    assert theory.trajectories_order(64_000, 8, lam=0.0) == pytest.approx(1000**0.5)
    assert theory.trajectories_order(64_000, 8, lam=1.0) == 1
    assert theory.trajectories_order(2, 8, lam=0.5) == 1


@UNHURRIED
@given(problem=problems)
def test_overall_smoothness_covers_every_part(problem):
    top = theory.overall_smoothness(problem) * SLACK
    assert theory.smoothness(problem) <= top
    assert theory.corrected_smoothness(problem) <= top
    assert math.sqrt(2) * theory.estimator_smoothness(problem) <= top


@UNHURRIED
@given(s=any_setting, t=times)
def test_stepsize_and_momentum_are_what_the_proof_needs(s, t):
    assert 0 < theory.alpha(s, t) <= 1 / (16 * s.smoothness * s.local_steps) * SLACK
    assert 0.74 <= theory.nu(s, t) <= 1


@UNHURRIED
@given(s=any_setting, t=times)
def test_c_t_falls_and_stays_above_its_floor(s, t):
    assert theory.c_t(s, t) <= theory.c_t(s, t - 1)
    assert 2 * s.sigma**2 <= theory.c_t(s, t) <= s.start * s.sigma**2 * SLACK
    assert theory.alpha(s, t) <= theory.alpha(s, t - 1)


@UNHURRIED
@given(s=any_setting, t=st.integers(1, 10**12))
def test_the_inverse_stepsize_grows_as_slowly_as_the_proof_needs(s, t):
    """1/α_t - 1/α_{t-1} ≤ (c_ν - 64 L̃²/(DN)) α_t, in units of L̃, and the condition of the gradient-error lemma."""
    unit = s._replace(smoothness=1.0)
    inverse_cube = max(unit.floor + t, unit.start) / unit.dn**2
    before = max(unit.floor + t - 1, unit.start) / unit.dn**2
    growth = (inverse_cube - before) / 3 * before ** (-2 / 3)  # at least the difference of the cube roots
    assert growth <= float(theory.alpha(unit, t)) / (24 * unit.local_steps * unit.dn**2) * (1 + 1e-6)


@UNHURRIED
@given(s=any_setting)
def test_c_nu_is_bounded_as_the_proof_says_with_the_overall_smoothness(s):
    assert s.c_nu <= 2**7 * s.smoothness**2 / s.dn
    assert s.c_nu <= 128 * math.sqrt(2) * s.smoothness**2 / s.dn
    rest = 96 * s.local_steps**4 * s.c_nu**2 / s.smoothness**4 / (16 * s.local_steps) ** 6
    assert 1 - rest >= 1 / 4


def test_c_nu_is_not_bounded_as_printed_with_the_smoothness_of_j():
    p = Problem(horizon=10, reward_bound=1.0, gamma=0.9, beta1=1.0, beta2=1.0, sigma_w=1.0)
    s = Setting(10, 10, 20, theory.overall_smoothness(p), 1.0)
    assert s.c_nu > 128 * math.sqrt(2) * theory.smoothness(p) ** 2 / s.dn


@UNHURRIED
@given(k=st.integers(1, 10**6), dn=st.integers(1, 10**6))
def test_the_accumulated_consensus_error_is_small_enough_for_the_theorem(k, dn):
    """The lemma is printed with (K-1)/(4NK), which its proof reaches for K ≤ 2; the theorem needs 33/256 (K-1)/(NK).

    Descent adds (K-1)/(8NK) from the gradient error and, since α ≤ 1/(16 L̃ K), (K-1)/(256NK) from the drift; what the
    proof gives for the sum of α δ is 3N/32 over 1 - 96 K⁴ c_ν² L̃²/(16 L̃ K)⁶.
    """
    c_nu = 1 / (24 * k * dn**2) + 64 / dn
    rest = 1 - 96 * k**4 * c_nu**2 / (16 * k) ** 6
    proven = 3 / 32 / rest
    assert (k - 1) / k * (1 / 8 + 1 / 256) * proven <= 1 / 64
    assert ((k - 1) / k / 4 * proven <= 1 / 64) == (k <= 2)


@UNHURRIED
@given(s=any_setting, sigma=st.floats(1e-6, 1e6), t=times)
def test_sigma_cancels_in_both_schedules_and_smoothness_in_the_momentum(s, sigma, t):
    other = s._replace(sigma=sigma)
    assert theory.alpha(s, t) == pytest.approx(theory.alpha(other, t), rel=1e-9)
    assert theory.nu(s, t) == pytest.approx(theory.nu(s._replace(sigma=sigma, smoothness=1.0), t), rel=1e-9)


@UNHURRIED
@given(s=any_setting, t=times)
def test_alpha_is_the_printed_quotient(s, t):
    printed = s.c_alpha / (theory.c_t(s, t) + s.sigma**2 * t) ** (1 / 3)
    assert theory.alpha(s, t) == pytest.approx(printed, rel=1e-6)


@UNHURRIED
@given(
    s=any_setting, steps=st.floats(0, 15).map(lambda x: float(int(10**x))), gap=st.floats(0, 1e3), d=st.integers(1, 10)
)
def test_the_last_estimates_of_the_proof_only_lose(s, steps, gap, d):
    first = d * s.local_steps * s.trajectories
    assert theory.schedule_bound(s, steps, gap, first) <= theory.gradient_bound(s, steps, gap, first) * 1.001


@settings(max_examples=30, deadline=None)
@given(k=st.integers(1, 3), dn=st.integers(1, 3), steps=st.integers(1, 300_000))
def test_the_sum_of_cubes_is_hardly_more_than_the_sum(k, dn, steps):
    s = Setting(dn, k, 1, 2.0, 1.0)
    exact = float(np.sum(theory.alpha(s, np.arange(steps + 1)) ** 3))
    assert exact * (1 - 1e-9) <= theory.sum_of_cubes(s, steps) <= exact * 1.001


@settings(max_examples=30, deadline=None)
@given(s=any_setting, t=st.integers(1, 2**31 - 1))
def test_the_training_uses_the_same_schedules(s, t):
    alpha, nu = schedules.theorem(*s)
    assert float(alpha(jnp.int32(t))) == pytest.approx(theory.alpha(s, t), rel=1e-5)
    assert float(nu(jnp.int32(t))) == pytest.approx(theory.nu(s, t), abs=1e-6)
