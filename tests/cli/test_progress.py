import io

import pytest

from mfpo.cli.progress import Bar, Lines, Quiet, make_progress, make_sweep_progress
from mfpo.cli.text import seconds_text, sparkline
from mfpo.reporting.numbers import bytes_text

ROW = {
    "round": 3,
    "return_mean": 312.44,
    "return_std": 80.1,
    "trajectories_per_agent": 600,
    "bytes_up": 1_070_000,
    "bytes_down": 1_070_000,
    "seconds": 0.42,
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_pipe_gets_one_plain_line_per_round(capsys):
    progress = make_progress(30, quiet=False)
    progress.started("CartPole-v1, mfpo, 10 agents")
    progress.row(ROW)
    progress.notice("look here")
    progress.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "CartPole-v1, mfpo, 10 agents; compiling …",
        "round 3/30  return 312.4 ± 80.1  600 trajectories/agent  2.1 MB  0.4 s",
        "mfpo: look here",
    ]


def test_small_returns_can_be_told_apart(capsys):
    Lines(30).row(ROW | {"return_mean": 0.72, "return_std": 0.0449, "evaluation_mean": 0.74, "evaluation_std": 0.02})
    assert "return 0.720 ± 0.045  evaluation 0.740 ± 0.020  600" in capsys.readouterr().err


def test_quiet_says_only_what_must_be_known(capsys):
    progress = make_progress(30, quiet=True)
    progress.started("CartPole-v1")
    progress.row(ROW)
    progress.notice("fell back to checkpoint 2")
    progress.close()
    assert capsys.readouterr() == ("", "mfpo: fell back to checkpoint 2\n")


def test_a_terminal_gets_a_bar_that_says_compiling_at_once(monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "120")
    progress = make_progress(30, quiet=False)
    try:
        assert isinstance(progress, Bar)
        task = progress._bar.tasks[0]
        assert (task.description, task.completed, task.total) == ("compiling …", 0, 30)
        progress.started("CartPole-v1 [10 agents]")
        progress.row(ROW)
        assert task.completed == 3
        assert "312.4 ± 80.1" in task.description and "600 trajectories/agent" in task.description
    finally:
        progress.close()
        progress.close()
    import sys

    assert "CartPole-v1 [10 agents]" in sys.stderr.getvalue()


def test_the_kind_of_display_follows_the_stream(monkeypatch):
    assert type(make_progress(1, quiet=False)) is Lines
    monkeypatch.setattr("sys.stderr", Terminal())
    assert type(make_progress(1, quiet=True)) is Quiet


def test_a_round_with_numbers_that_are_not_finite_is_shown(capsys):
    Lines(30).row(ROW | {"return_mean": None, "return_std": None})
    assert "return –" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_960, "1.0 MB"), (3.2e15, "3200.0 TB")]
)
def test_bytes(count, text):
    assert bytes_text(count) == text


def test_seconds_round_into_the_next_unit():
    assert [seconds_text(s) for s in (59.94, 59.96, 3599.6)] == ["59.9 s", "1 min 0 s", "1 h 0 min"]


def test_sparkline_shows_lowest_and_highest_in_the_width():
    line = sparkline(list(range(1000)), width=40)
    assert len(line) <= 40
    assert line[0] == "▁" and line[-1] == "█"
    assert sparkline([5, 5, 5]) == "▁▁▁"
    assert sparkline([None]) == ""


def test_the_bar_of_a_sweep_counts_work_and_elsewhere_there_is_none(monkeypatch):
    assert isinstance(make_sweep_progress(400.0, quiet=False), Quiet)
    monkeypatch.setattr("sys.stderr", Terminal())
    assert isinstance(make_sweep_progress(400.0, quiet=True), Quiet)
    progress = make_sweep_progress(400.0, quiet=False)
    try:
        assert isinstance(progress, Bar)
        progress.advance(60.0, "agents=3, seed 1")
        progress.advance(40.0, "agents=2, seed 0")
        task = progress._bar.tasks[0]
        assert (task.percentage, task.description) == (25, "agents=2, seed 0")
    finally:
        progress.close()
