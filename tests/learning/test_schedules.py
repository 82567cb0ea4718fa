import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mfpo.learning import schedules


def at(schedule, *ts):
    return [float(schedule(jnp.int32(t))) for t in ts]


def test_geometric_both_readings_of_the_paper():
    np.testing.assert_allclose(at(schedules.geometric(1e-4, 0.99), 1, 100), [0.99e-4, 1e-4 * 0.99**100], rtol=1e-5)
    np.testing.assert_allclose(at(schedules.geometric(1e-4, 1 / 0.99), 100), [1e-4 * 0.99**-100], rtol=1e-4)


def test_paper_momentum_is_one_minus_three_alpha_and_stays_in_range():
    nu = schedules.paper_momentum(schedules.geometric(0.1, 1.0))
    np.testing.assert_allclose(at(nu, 5), [0.7], rtol=1e-6)
    assert at(schedules.paper_momentum(schedules.geometric(0.5, 1.0)), 5) == [0.0]


def test_theorem_hand_computed():
    # N=2, K=1, D=1, L=1, sigma=1: DN=2; c_nu = 1/96 + 32; c_alpha = 2^(2/3); start of c_t = 4096*4 = 16384
    alpha, nu = schedules.theorem(2, 1, 1, 1.0, 1.0)
    c_nu = 1 / 96 + 32
    np.testing.assert_allclose(at(alpha, 1), [2 ** (2 / 3) / 16384 ** (1 / 3)], rtol=1e-5)
    np.testing.assert_allclose(at(nu, 2), [1 - c_nu * (2 ** (2 / 3) / 16384 ** (1 / 3)) ** 2], rtol=1e-5)
    late = 20000  # beyond the start the floor rules: max(c_nu³ c_alpha³ / 2^12, 2) = max(32.99.., 2)
    floor = c_nu**3 * 4 / 2**12
    np.testing.assert_allclose(at(alpha, late), [2 ** (2 / 3) / (floor + late) ** (1 / 3)], rtol=1e-4)


@settings(deadline=None, max_examples=50)
@given(
    agents=st.integers(1, 100),
    local_steps=st.integers(1, 50),
    trajectories=st.integers(1, 50),
    smoothness=st.floats(0.1, 1e3),
    sigma=st.floats(0.1, 100.0),
)
def test_theorem_stepsize_obeys_the_bound_the_proof_needs(agents, local_steps, trajectories, smoothness, sigma):
    alpha, nu = schedules.theorem(agents, local_steps, trajectories, smoothness, sigma)
    for t in (1, 10, 1000, 10**6):
        assert at(alpha, t)[0] <= 1 / (16 * smoothness * local_steps) * (1 + 1e-4)
        assert 0 <= at(nu, t)[0] <= 1
