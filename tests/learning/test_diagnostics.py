"""The diagnostics against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo.learning import diagnostics, trees

# Three agents with directions in two pieces, (1, 0 | 2), (3, 4 | 0), (2, -1 | 1): their mean is (2, 1 | 1).
DIRECTIONS = {"w": jnp.array([[1.0, 0.0], [3.0, 4.0], [2.0, -1.0]]), "b": jnp.array([2.0, 0.0, 1.0])}


def consensus(directions, mask):
    mask = jnp.array(mask)
    found = jax.jit(diagnostics.consensus)(directions, trees.masked_mean(directions, mask), mask)
    return float(found["consensus_error"]), float(found["gradient_norm_squared"])


def test_three_agents_by_hand():
    # distances to the mean: 1+1+1 = 3, 1+9+1 = 11, 0+4+0 = 4; inner products: 1·3+0+0 = 3, 2+0+2 = 4, 6-4+0 = 2
    assert consensus(DIRECTIONS, [True, True, True]) == pytest.approx((18.0, 3.0))


def test_only_those_that_answered_count_whatever_the_others_hold():
    broken = {name: x.at[1].set(jnp.nan) for name, x in DIRECTIONS.items()}
    # the first and the third: mean (1.5, -0.5 | 1.5), distances 0.75 each, inner product 2 + 0 + 2
    assert consensus(broken, [True, False, True]) == pytest.approx((1.5, 4.0))


@pytest.mark.parametrize("mask", [[False, True, False], [False, False, False]])
def test_fewer_than_two_have_no_estimate(mask):
    error, norm = consensus(DIRECTIONS, mask)
    assert error == 0 and np.isnan(norm)


def test_opposite_directions_have_a_negative_one():
    assert consensus(jnp.array([[2.0, 0.0], [-2.0, 0.0]]), [True, True]) == pytest.approx((8.0, -4.0))


def test_noise_does_not_inflate_it():
    """The square of the mean is 1 + 50/5 on average, the estimate 1."""
    draws = jax.random.normal(jax.random.key(0), (2000, 5, 50)).at[:, :, 0].add(1.0)
    means = jnp.mean(draws, axis=1)
    found = jax.vmap(diagnostics.consensus, (0, 0, None))(draws, means, jnp.ones(5, bool))
    assert np.mean(jnp.sum(means**2, axis=1)) == pytest.approx(11, abs=0.2)
    assert np.mean(found["gradient_norm_squared"]) == pytest.approx(1, abs=0.2)
    assert np.mean(found["consensus_error"]) == pytest.approx(4 * 50, rel=0.01)  # N - 1 degrees of freedom


def test_two_measured_gradients_by_hand():
    direction = {"w": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)}
    one = {"w": jnp.array([0.0, 2.0]), "b": jnp.array(1.0)}
    other = {"w": jnp.array([2.0, 1.0]), "b": jnp.array(1.0)}
    found = diagnostics.against_reference(direction, one, other)
    # (1, 0 | 2) · (-1, 1 | 2) = 3, and (0, 2 | 1) · (2, 1 | 1) = 3
    assert {name: float(x) for name, x in found.items()} == {
        "gradient_error": 3.0,
        "reference_gradient_norm_squared": 3.0,
    }
    assert float(diagnostics.against_reference(direction, other, other)["gradient_error"]) == 6.0
