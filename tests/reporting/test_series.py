import pytest

from mfpo.reporting.series import POINTS, curve_of, recent, thin, total


def rows(count, **columns):
    return [{"round": t, **{name: value(t) for name, value in columns.items()}} for t in range(1, count + 1)]


@pytest.mark.parametrize("count", [0, 1, 5, 399, 400, 401, 799, 801, 12_345])
def test_curves_are_short_and_nothing_is_lost(count):
    groups = thin(rows(count))
    assert len(groups) <= POINTS
    assert [row["round"] for group in groups for row in group] == list(range(1, count + 1))
    assert count <= POINTS or len(groups) > POINTS / 2 - 1
    assert all(groups)


def test_a_point_of_several_rounds_says_the_right_thing_of_each_column():
    run = rows(
        4,
        return_mean=lambda t: 10.0 * t,
        return_std=lambda t: 1.0 * t,
        drift=lambda t: t / 10,
        answered=lambda t: 2 if t == 2 else 3,
        rejected=lambda t: 1 if t > 2 else 0,
        refused=lambda t: t,
    )
    assert curve_of(thin(run, 2)) == {
        "from": [1, 3],
        "round": [2, 4],
        "mean": [15.0, 35.0],
        "low": [13.5, 31.5],
        "high": [16.5, 38.5],
        "drift": [0.15, 0.35],
        "answered": [2, 3],  # the fewest
        "rejected": [0, 2],  # all of them
        "refused": [3, 7],
    }


def test_unknown_values_leave_a_gap_and_unknown_columns_are_empty():
    curve = curve_of(thin([{"round": 1, "return_mean": None, "return_std": None}, {"round": 2, "return_mean": 1.0}]))
    assert curve["mean"] == [None, 1.0]
    assert curve["low"] == [None, None]
    assert curve["drift"] == curve["answered"] == []


def test_sums_and_recent_values_pass_over_what_is_unknown():
    run = rows(9, seconds=lambda t: None if t == 8 else float(t))
    assert recent(run, "seconds") == [5, 6, 7, 9]
    assert total(run, "seconds") == 37
    assert total(run, "refused") is None
