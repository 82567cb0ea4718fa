"""Seeds that never reach the threshold are counted, in the table as in the figure."""

import json

import pytest

from mfpo.reporting.records import load_record
from mfpo.reporting.sweep import (
    NUMBERS,
    TABLE,
    cost_to_reach,
    load_points,
    rows_of,
    save_figures,
    save_table,
    table_text,
    threshold_figure,
)


@pytest.fixture
def points(make_run):
    """One agent: the second of three seeds is too slow. Four agents: all are fast."""
    speeds = {1: (8.0, 60.0, 9.0), 4: (3.0, 3.0, 4.0)}
    return {
        agents: [make_run(f"{agents}-{seed}", agents=agents, seed=seed, speed=speed) for seed, speed in enumerate(of)]
        for agents, of in speeds.items()
    }


def rows(points, threshold=400.0):
    return rows_of(load_points(points), threshold)


def test_the_first_round_that_reaches_it_counts(make_run):
    record = load_record(make_run(speed=6.0))
    first = next(row for row in record.rows if row["return_mean"] >= 400)
    assert cost_to_reach(record, 400, "round") == first["round"] > 1
    assert cost_to_reach(record, 400, "trajectories_per_agent") == 200 * first["round"]
    assert cost_to_reach(record, 501, "round") is None


def test_who_never_reaches_it_makes_the_mean_a_lower_bound(points):
    slow, fast = rows(points)
    assert (slow["value"], slow["seeds"], slow["reached"], slow["finished"]) == (1, 3, 2, 3)
    first, never, last = slow["rounds"]["each"]
    assert never is None and slow["rounds"]["at_least"]
    assert slow["rounds"]["mean"] == pytest.approx((first + 30 + last) / 3)
    assert slow["rounds"]["median"] == max(first, last)
    assert slow["trajectories"]["mean"] == pytest.approx(200 * slow["rounds"]["mean"])
    assert fast["reached"] == 3 and not fast["rounds"]["at_least"]
    low, high = fast["rounds"]["interval"]
    assert low <= fast["rounds"]["mean"] <= high < slow["rounds"]["mean"]


def test_a_median_beyond_all_rounds_is_none(make_run):
    (row,) = rows({1: [make_run(speed=60.0), make_run(speed=60.0, seed=1), make_run(speed=3.0, seed=2)]})
    assert row["rounds"]["median"] is None and row["reached"] == 1
    assert "not reached" in table_text("agents", [row]) and "≥ " in table_text("agents", [row])


def test_small_scores_can_be_told_apart_and_costs_stay_as_they_are(make_run):
    def score(mean):
        path = make_run()
        (path / "summary.json").write_text(json.dumps({"evaluation": {"mean": mean}}))
        return path

    text = table_text("agents", rows({1: [score(0.72)], 2: [score(0.74)], 4: [score(-145.82)]}))
    assert [line.split("|")[3].strip() for line in text.splitlines()[2:]] == [
        "0.720 (0.720 .. 0.720)",
        "0.740 (0.740 .. 0.740)",
        "-145.8 (-145.8 .. -145.8)",
    ]
    assert "| 9.0 (9.0 .. 9.0) |" in text and "| 1,800 (1,800 .. 1,800) " in text


def test_a_run_that_ended_early_is_charged_for_all_its_rounds(make_run):
    path = make_run(speed=60.0, finished=False)
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:5]))
    (row,) = rows({1: [path]})
    assert (row["rounds"]["mean"], row["trajectories"]["mean"], row["finished"]) == (30, 6000, 0)
    assert row["score"]["mean"] is None


def test_what_is_written(points, tmp_path):
    records = load_points(points)
    table = save_table("agents", records, tmp_path, 400.0)
    figures = save_figures("agents", records, tmp_path, 400.0)
    numbers = json.loads((tmp_path / NUMBERS).read_text())
    assert numbers == {"option": "agents", "threshold": 400.0, "values": table}
    text = (tmp_path / TABLE).read_text()
    assert text == table_text("agents", table) + "\n" and "2 of 3" in text and "500.0 (500.0 .. 500.0)" in text
    assert [figure.name for figure in figures] == ["curves-rounds.png", "curves-trajectories.png", "threshold.png"]
    assert all(figure.read_bytes().startswith(b"\x89PNG") for figure in figures)


def test_without_a_threshold_there_are_scores_and_curves(points, tmp_path):
    records = load_points(points)
    assert "reached" not in save_table("agents", records, tmp_path, None)[0]
    assert len(save_figures("agents", records, tmp_path, None)) == 2
    assert "reached" not in (tmp_path / TABLE).read_text()


def test_the_figure_shows_who_is_missing_and_the_ideal_only_for_agents(points):
    table = rows(points)
    left, right = threshold_figure("agents", table, 400.0, "title").axes
    for axes in (left, right):
        assert "1 of 3\nnever" in [text.get_text() for text in axes.texts]
        assert axes.get_xscale() == axes.get_yscale() == "log"
        (ideal,) = [line for line in axes.lines if line.get_label() == "ideal, 1/N"]
        x, y = ideal.get_data()
        assert y[0] / y[1] == pytest.approx(x[1] / x[0])
    other = threshold_figure("stepsize", table, 400.0, "title").axes[0]
    assert not [line for line in other.lines if "ideal" in str(line.get_label())]
    assert other.get_yscale() == "linear"
