"""Exact numbers: every expected value below can be worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfpo.reporting.statistics import bootstrap_interval, iqm, mean, std


def test_mean_and_std_are_those_of_the_values():
    assert mean([2, 4, 9]) == 5
    assert std([2, 4, 9]) == pytest.approx(np.sqrt((9 + 1 + 16) / 3))
    assert std([7]) == 0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5], 5),
        ([1, 2, 9], 4),  # 3 // 4 = 0: nothing is cut
        ([0, 10, 20, 1000], 15),
        ([-100, 1, 2, 3, 4, 5, 6, 700], (2 + 3 + 4 + 5) / 4),
        (list(range(10)), (2 + 3 + 4 + 5 + 6 + 7) / 6),
    ],
)
def test_iqm_drops_a_quarter_at_each_end(values, expected):
    assert iqm(values) == pytest.approx(expected)
    assert iqm(values[::-1]) == pytest.approx(expected)


def test_statistics_reduce_the_axis_they_are_told():
    table = np.array([[0.0, 100.0], [10.0, 300.0], [20.0, 500.0], [1000.0, 700.0]])
    np.testing.assert_allclose(iqm(table), [15, 400])
    np.testing.assert_allclose(iqm(table.T, axis=1), [15, 400])
    np.testing.assert_allclose(mean(table, axis=1), [50, 155, 260, 850])


def test_bootstrap_of_two_values_has_three_outcomes():
    # The mean of a resample of {0, 1} is 0, 1/2 or 1 with probability 1/4, 1/2, 1/4.
    assert bootstrap_interval([0, 1], samples=1000) == (0, 1)
    low, high = bootstrap_interval([0, 1], samples=1000, level=0.2)
    assert (low, high) == (0.5, 0.5)


def test_bootstrap_equals_the_quantiles_of_its_resamples():
    values = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0])
    draws = np.random.default_rng(7).integers(6, size=(50, 6))
    means = sorted(sum(values[i] for i in row) / 6 for row in draws)
    low, high = bootstrap_interval(values, mean, samples=50, seed=7)
    # Linear interpolation between order statistics: 0.025 * 49 = 1.225 and 0.975 * 49 = 47.775.
    assert low == pytest.approx(means[1] + 0.225 * (means[2] - means[1]))
    assert high == pytest.approx(means[47] + 0.775 * (means[48] - means[47]))


def test_bootstrap_of_curves_resamples_whole_curves():
    curves = np.array([[0.0, 0.0], [1.0, 10.0]])
    low, high = bootstrap_interval(curves, samples=500)
    np.testing.assert_allclose(low * 10, [0, 0])
    np.testing.assert_allclose(high, [1, 10])
    low, high = bootstrap_interval(curves, lambda v, axis=0: mean(v[..., 1] - 10 * v[..., 0], axis), samples=50)
    assert (low, high) == (0, 0)  # in every resample the second point is ten times the first


def test_bootstrap_depends_on_its_seed_only():
    values = np.arange(9.0)
    again = [bootstrap_interval(values, iqm, samples=99, seed=s) for s in (1, 1, 2)]
    assert again[0] == again[1] != again[2]


def test_bootstrap_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one value"):
        bootstrap_interval([])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), st.integers(0, 9))
def test_interval_lies_within_the_values_and_is_ordered(values, seed):
    low, high = bootstrap_interval(values, samples=40, seed=seed)
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert min(values) - slack <= low <= high <= max(values) + slack
