"""What the figures say, read back from the objects that are drawn."""

import errno
import json
import sys

import numpy as np
import pytest

from mfpo.errors import ConfigError, MissingExtra, RunError
from mfpo.reporting import curves
from mfpo.reporting.curves import curve_of, figure, group_runs, save_figure
from mfpo.reporting.records import load_record
from mfpo.reporting.statistics import bootstrap_interval


def groups_of(*paths):
    return group_runs([load_record(path) for path in paths])


def labelled(axes):
    """The lines a legend would name; the thin lines of single seeds have names that begin with an underscore."""
    return [line for line in axes.get_lines() if not line.get_label().startswith("_")]


def test_seeds_of_a_setting_are_one_group_and_settings_are_told_apart(make_run):
    runs = [make_run(seed=s, momentum=m) for m in (0.8, 0.0) for s in (0, 1, 2)]
    groups = groups_of(*runs)
    assert [len(group.records) for group in groups] == [3, 3]
    assert [group.label for group in groups] == ["momentum 0.8", "momentum 0"]


def test_where_a_run_was_computed_does_not_make_it_another_setting(make_run):
    assert len(groups_of(make_run(seed=0), make_run(seed=1, engine="debug", devices=2, processes=2))) == 1


def test_labels_name_all_that_differs_and_only_that(make_run):
    groups = groups_of(make_run(agents=1, hidden=[16, 16]), make_run(agents=50, hidden=[64]))
    assert [group.label for group in groups] == ["agents 1, hidden 16×16", "agents 50, hidden 64"]


def test_algorithms_are_named_first(make_run):
    groups = groups_of(make_run(), make_run(algorithm="fed_sac"))
    assert [group.label for group in groups] == ["mfpo", "fed_sac"]


def test_presets_that_change_much_are_named_by_their_name(make_run):
    changes = {"momentum": 0.1, "local_steps": 3, "trajectories": 4, "hidden": [2]}
    groups = groups_of(make_run(), make_run(preset="paper", **changes))
    assert [group.label for group in groups] == ["preset default", "preset paper"]


def test_one_run_shows_its_mean_and_a_band_no_episode_left(make_run):
    run = make_run(rounds=12)
    rows = load_record(run).rows
    (group,) = groups_of(run)
    curve = curve_of(group)
    np.testing.assert_array_equal(curve.x, range(1, 13))
    np.testing.assert_array_equal(curve.y, [row["return_mean"] for row in rows])
    assert all(curve.high <= 500)
    assert all(curve.low >= [row["return_min"] for row in rows])
    assert curve.high[0] == rows[0]["return_mean"] + rows[0]["return_std"]


def test_seeds_show_their_mean_and_its_bootstrap_interval(make_run):
    runs = [make_run(rounds=5, seed=s, speed=3 + s) for s in range(4)]
    table = np.array([[row["return_mean"] for row in load_record(run).rows] for run in runs])
    (group,) = groups_of(*runs)
    curve = curve_of(group, "trajectories")
    np.testing.assert_array_equal(curve.x, [200, 400, 600, 800, 1000])
    np.testing.assert_allclose(curve.y, table.mean(axis=0))
    low, high = bootstrap_interval(table)
    np.testing.assert_allclose((curve.low, curve.high), (low, high))
    assert len(curve.each) == 4


def test_seeds_with_different_steps_are_compared_where_all_have_been(make_run):
    (group,) = groups_of(make_run(rounds=5, seed=0), make_run(rounds=5, seed=40))
    curve = curve_of(group, "steps")
    assert (curve.x[0], curve.x[-1]) == (70_000 + 40 * 900, 5 * 70_000)


def test_bytes_are_those_of_both_directions(make_run):
    (group,) = groups_of(make_run(rounds=3))
    np.testing.assert_array_equal(curve_of(group, "bytes").x, [60_000, 120_000, 180_000])


def test_numbers_that_were_not_finite_leave_a_gap(make_run):
    run = make_run(rounds=3)
    rows = load_record(run).rows
    rows[1] |= dict.fromkeys(("return_mean", "return_std", "return_min", "return_max"))
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert list(np.isnan(curve_of(groups_of(run)[0]).y)) == [False, True, False]


def test_the_figure_of_one_run_has_its_curve_evaluation_and_threshold(make_run):
    axes = figure([make_run(rounds=8)], threshold=475).axes[0]
    names = [line.get_label() for line in labelled(axes)]
    assert names == ["training", "evaluation 500.0 ± 0.0 (100 episodes)", "threshold 475"]
    assert len(labelled(axes)[0].get_xdata()) == 8
    assert axes.get_xlabel() == "communication rounds"
    assert axes.get_ylabel() == "return of an episode"
    assert axes.get_title(loc="left") == "CartPole-v1 · mfpo · 10 agents"


def test_a_small_evaluation_is_labelled_with_digits_that_tell(make_run):
    run = make_run(rounds=3)
    (run / "summary.json").write_text(json.dumps({"evaluation": {"mean": 0.034, "std": 0.1812, "episodes": 50}}))
    _, mark = labelled(figure([run]).axes[0])
    assert mark.get_label() == "evaluation 0.034 ± 0.181 (50 episodes)"


def judged(run, every):
    """The run with its policy judged on the way."""
    rows = load_record(run).rows
    for row in rows[every - 1 :: every]:
        t = row["round"]
        row |= {"evaluation_mean": t, "evaluation_std": 5, "evaluation_min": t - 2, "evaluation_max": t + 9}
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return run


def test_runs_that_were_judged_on_the_way_show_that(make_run):
    run = judged(make_run(rounds=7), 3)
    axes = figure([run]).axes[0]
    line, end = labelled(axes)
    assert line.get_label() == "on the way" and end.get_xdata() == [7]
    assert [list(x) for x in line.get_data()] == [[3, 6], [3, 6]]
    assert "fresh episodes" in axes.texts[0].get_text()
    curve = curve_of(groups_of(run)[0], field="evaluation_mean")
    assert (list(curve.low), list(curve.high)) == ([1, 4], [8, 11])
    both = figure([run, make_run(rounds=7, momentum=0.5)]).axes[0]  # the other one was not: what both have is drawn
    assert [len(line.get_xdata()) for line in labelled(both)] == [7, 7]
    assert "training episodes" in both.texts[0].get_text()


def test_the_figure_of_many_runs_has_a_line_per_setting_and_a_thin_one_per_seed(make_run):
    runs = [make_run(rounds=6, seed=s, momentum=m) for m in (0.8, 0.5, 0.0) for s in (0, 1)]
    axes = figure(runs, x="bytes").axes[0]
    assert [line.get_label() for line in labelled(axes)] == ["momentum 0.8", "momentum 0.5", "momentum 0"]
    assert len(axes.get_lines()) == 3 + 6
    assert len({line.get_color() for line in labelled(axes)}) == 3
    assert axes.get_xlabel() == "bytes sent, all agents, up and down (kB)"
    assert labelled(axes)[0].get_xdata()[-1] == 360


def test_labels_and_title_can_be_given(make_run):
    runs = [make_run(momentum=m) for m in (0.8, 0.0)]
    axes = figure(runs, labels=["MFPO", "FedAvg-PG"], title="Ablation").axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["MFPO", "FedAvg-PG"]
    assert axes.get_title(loc="left") == "Ablation"
    with pytest.raises(ConfigError, match="2 different settings, but 1 labels"):
        figure(runs, labels=["MFPO"])


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_the_suffix_chooses_the_format(make_run, tmp_path, suffix, start):
    out = save_figure([make_run()], tmp_path / f"curve{suffix}")
    assert out.read_bytes().startswith(start)


def test_bad_requests_are_refused_in_a_sentence(make_run, tmp_path):
    run = make_run()
    with pytest.raises(ConfigError, match=r"should end in one of \.png, \.svg, \.pdf"):
        save_figure([run], tmp_path / "curve.bmp")
    with pytest.raises(ConfigError, match=r"--x is 'round'\. Did you mean rounds\?"):
        figure([run], x="round")
    with pytest.raises(RunError, match="is not a run"):
        figure([run, tmp_path])
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(RunError, match="no finished round yet"):
        figure([run])


def test_a_full_disk_keeps_the_picture_that_was_there(make_run, tmp_path, monkeypatch):
    out = save_figure([make_run()], tmp_path / "curve.png")
    before = out.read_bytes()

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mfpo.runs.files._write", full)
    with pytest.raises(RunError, match="cannot be written: the disk is full"):
        save_figure([tmp_path / "run0"], out, threshold=100)
    assert out.read_bytes() == before


def test_without_matplotlib_the_install_command_is_given(make_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mfpo\[plot\]'"):
        figure([make_run()])


def test_every_axis_has_a_field_in_the_rows(make_run):
    row = load_record(make_run()).rows[0]
    assert all(field in row for fields, _, _ in curves.AXES.values() for field in fields)
