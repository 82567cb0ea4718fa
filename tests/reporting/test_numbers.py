"""Small scores can be told apart, and large ones look as they always did."""

import pytest

from mfpo.reporting.numbers import decimals, score_text


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [
        (500.0, 0.0, "500.0 ± 0.0"),
        (-145.8, 3.14, "-145.8 ± 3.1"),
        (10795.04, 520.0, "10795.0 ± 520.0"),
        (20.8, 0.2, "20.8 ± 0.2"),
        (9.352, 0.7, "9.35 ± 0.70"),
        (0.72, 0.449, "0.720 ± 0.449"),
        (0.74, 0.439, "0.740 ± 0.439"),
        (0.01, 0.0995, "0.0100 ± 0.0995"),
        (0.0, 0.0, "0.0 ± 0.0"),
        (1e-17, 0.0, "0.0 ± 0.0"),
        (0.0012, 80.0, "0.0 ± 80.0"),
        (None, None, "–"),
    ],
)
def test_the_larger_of_score_and_spread_shows_three_digits(mean, std, text):
    assert score_text(mean, std) == text


def test_decimals_are_those_of_the_number_as_it_is_shown():
    assert [decimals(x) for x in (9.994, 9.996, 0.9996, -0.05, 1e-8)] == [2, 1, 2, 4, 10]
    assert decimals(float("inf"), 1.0) == decimals(float("nan")) == 1
