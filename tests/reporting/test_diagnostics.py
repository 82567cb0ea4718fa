"""The panels: which there are, what is in them, and numbers that are negative, tiny or missing."""

import json

import numpy as np
import pytest

from mfpo.errors import ConfigError, RunError
from mfpo.reporting.diagnostics import diagnostics_figure, save_diagnostics

TITLES = [
    "return of an episode", "squared gradient ‖∇J‖²", "gradient error ‖ū − ∇J‖²", "consensus error Σ ‖uᵢ − ū‖²",
    "drift, mean of ‖θᵢ − θ̄‖", "effective sample size, share of a batch",
]  # fmt: skip


def diagnosed(path, every=3, **other):
    """Give the rows of a run what a run of mfpo reports."""
    file = path / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        size = 10.0 ** (4 - row["round"] / 10)
        row |= {"consensus_error": 9 * size, "gradient_norm_squared": size, "effective_sample_size": 0.9}
        if every and row["round"] % every == 0:
            row |= {"gradient_error": size / 2, "reference_gradient_norm_squared": 2 * size}
        row |= {name: of(row["round"]) for name, of in other.items()}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def panels(paths, **options):
    picture = diagnostics_figure(paths, **options)
    return {axes.get_title(loc="left"): axes for axes in picture.axes if axes.axison}


def test_every_quantity_has_its_panel(make_run):
    found = panels([diagnosed(make_run())])
    assert list(found) == TITLES
    norm, error = found[TITLES[1]], found[TITLES[2]]
    assert [len(line.get_xdata()) for line in error.lines] == [10]
    np.testing.assert_array_equal(error.lines[0].get_xdata(), np.arange(3, 31, 3))
    estimate, reference = norm.lines[:2]
    np.testing.assert_allclose(estimate.get_ydata(), 10.0 ** (4 - np.arange(1, 31) / 10))
    np.testing.assert_allclose(reference.get_ydata(), 2 * 10.0 ** (4 - np.arange(3, 31, 3) / 10))
    assert norm.get_yscale() == "log" and found[TITLES[0]].get_yscale() == "linear"


def test_what_no_run_reports_has_none(make_run):
    assert list(panels([diagnosed(make_run(), every=0)])) == [TITLES[i] for i in (0, 1, 3, 4, 5)]
    alone = diagnosed(make_run(seed=1), every=0, gradient_norm_squared=lambda _: None)  # one agent
    assert list(panels([alone])) == [TITLES[i] for i in (0, 3, 4, 5)]
    assert list(panels([make_run(seed=2)])) == [TITLES[0], TITLES[4]]  # as other algorithms


def test_without_any_there_is_a_sentence(make_run):
    with pytest.raises(RunError, match=r"None of these runs reports a diagnostic: .* Leave out --diagnostics"):
        panels([diagnosed(make_run(), every=0, **{name: lambda _: None for name in (
            "drift", "consensus_error", "gradient_norm_squared", "effective_sample_size")})])  # fmt: skip
    with pytest.raises(ConfigError, match="--x is 'hours'"):
        panels([diagnosed(make_run(seed=1))], x="hours")


def test_negative_estimates_are_shown(make_run):
    path = diagnosed(make_run(rounds=6), gradient_norm_squared=lambda t: (-10.0) ** t)
    norm = panels([path])[TITLES[1]]
    assert norm.get_yscale() == "symlog" and norm.get_ylim()[0] < -1e4 and norm.get_ylim()[1] > 1e6
    assert min(norm.get_yticks()) < 0 and 0 in norm.get_yticks() and len(norm.get_yticks()) < 12


def test_seeds_are_one_line_and_settings_have_their_colours(make_run):
    paths = [diagnosed(make_run(seed=seed, momentum=m)) for m in (0.8, 0.0) for seed in (0, 1)]
    for title, axes in panels(paths, x="trajectories").items():
        thick = [line for line in axes.lines if line.get_label().startswith("momentum")]
        assert [line.get_label() for line in thick] == ["momentum 0.8", "momentum 0"], title
        assert len({line.get_color() for line in thick}) == 2


def test_runs_that_lack_a_quantity_are_left_out_of_its_panel(make_run):
    found = panels([diagnosed(make_run(momentum=0.8)), make_run(momentum=0.0)])
    labels = {title: [line.get_label() for line in axes.lines] for title, axes in found.items()}
    assert {"momentum 0.8", "momentum 0"} <= set(labels[TITLES[0]])
    assert "momentum 0" not in labels[TITLES[3]] and "momentum 0.8" in labels[TITLES[3]]


def test_it_is_written_like_any_figure(make_run, tmp_path):
    out = save_diagnostics([diagnosed(make_run())], tmp_path / "d.svg", threshold=475.0, title="Mine")
    text = out.read_text()
    assert "Mine" in text and TITLES[2] in text and "threshold 475" in text
