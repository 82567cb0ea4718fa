"""The commands on a real, tiny run."""

import json
import re
import shutil
import signal
import sys

import numpy as np
import pytest

from mfpo.reporting.numbers import bytes_text
from mfpo.reporting.records import load_metrics
from mfpo.reporting.video import Film

pytestmark = pytest.mark.xdist_group("training")  # one worker, so that the run is trained once

ENDLESS = "--agents 2 --rounds 100000 --local-steps 1 --trajectories 2 --hidden 4 --step plain --stepsize 0.01".split()
ENDLESS += "--baseline none --no-normalise-observations --evaluation-episodes 3".split()


def test_train_leaves_a_complete_run(trained):
    path, _, _ = trained
    expected = {"config.toml", "metrics.jsonl", "policy.safetensors", "policy.json", "summary.json", "checkpoints"}
    assert expected | {"curve.png", "tensorboard"} <= {file.name for file in path.iterdir()}
    assert (path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_train_shows_a_line_per_round_on_stderr(trained):
    _, _, err = trained
    title, *rounds = err.splitlines()
    assert title == "CartPole-v1, mfpo, 2 agents, seed 0; compiling …"
    number = r"\d+\.\d"
    pattern = rf"round (\d)/2  return {number} ± {number}  (\d) trajectories/agent  \d+(?:\.\d)? k?B  {number} s"
    found = [re.fullmatch(pattern, line) for line in rounds]
    assert all(found), rounds
    assert [match[1] for match in found] == ["1", "2"]


def test_train_ends_with_what_was_reached_and_what_to_do_next(trained):
    path, out, _ = trained
    summary = json.loads((path / "summary.json").read_text())
    evaluation = summary["evaluation"]
    assert f"{evaluation['mean']:.1f} ± {evaluation['std']:.1f} over 3 fresh episodes" in out
    assert "2 with 2 agents" in out
    assert f"{summary['trajectories_per_agent']:,} per agent" in out
    assert f"{bytes_text(summary['bytes_up'])} up, {bytes_text(summary['bytes_down'])} down" in out
    assert str(path / "curve.png") in out
    assert f"mfpo play {path}" in out
    assert f"mfpo plot {path}" in out


def test_a_finished_run_can_be_asked_for_its_summary_again(mfpo, trained):
    path, _, _ = trained
    code, out, err = mfpo("resume", path, "--json", "--quiet")
    assert code == 0
    assert json.loads(out) == json.loads((path / "summary.json").read_text()) | {"path": str(path)}
    assert "nothing to do" in err


def test_evaluate_repeats_the_evaluation_and_takes_another_seed(mfpo, trained):
    path, _, _ = trained
    summary = json.loads((path / "summary.json").read_text())
    same, other, greedy = (
        json.loads(mfpo("evaluate", path, "--json", *more)[1])
        for more in ([], ["--seed", 9, "--episodes", 4], ["--greedy"])
    )
    assert same["returns"] == summary["evaluation"]["returns"]
    assert len(other["returns"]) == 4 and other["seed"] == 9
    assert greedy["greedy"] is True
    _, text, _ = mfpo("evaluate", path)
    assert text.startswith(f"{same['mean']:.1f} ± {same['std']:.1f} over 3 episodes (stochastic, seed 0)")
    assert mfpo("evaluate", path, "--episodes", 0)[0] == 2


def test_play_films_an_episode(mfpo, trained, tmp_path):
    path, _, _ = trained
    code, out, _ = mfpo("play", path, "--seed", 3, "--greedy")
    assert code == 0
    steps = re.fullmatch(rf"return (\d+\.0+) in (\d+) steps: {re.escape(str(path))}/episode\.gif\n", out)
    assert steps and float(steps[1]) == int(steps[2])
    assert (path / "episode.gif").read_bytes().startswith(b"GIF89a")
    assert mfpo("play", path / "policy.safetensors", "--out", tmp_path / "other.gif")[0] == 0
    assert mfpo("play", path, "--out", tmp_path / "other.avi")[0] == 2


@pytest.mark.parametrize(("score", "text"), [(-145.83, "-145.8"), (9.352, "9.35"), (0.0342, "0.0342")])
def test_small_returns_can_be_told_apart(mfpo, trained, tmp_path, monkeypatch, score, text):
    film = Film([np.zeros((2, 2, 3), np.uint8)] * 3, 30.0, score)
    monkeypatch.setattr("mfpo.reporting.video.film_episode", lambda *args: film)
    out = tmp_path / "x.gif"
    assert mfpo("play", trained[0], "--out", out) == (0, f"return {text} in 2 steps: {out}\n", "")


def test_plot_writes_the_picture_where_it_says(mfpo, trained, tmp_path, monkeypatch):
    path, _, _ = trained
    monkeypatch.chdir(tmp_path)
    assert mfpo("plot", path)[1] == f"{path / 'curve.png'}\n"
    assert mfpo("plot", path, path)[1] == "curves.png\n"
    assert mfpo("plot", path, path, "--diagnostics")[1] == "diagnostics.png\n"
    for name in ("curves.png", "diagnostics.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    code, out, _ = mfpo("plot", path, "--x", "steps", "--threshold", "-100", "--title", "Mine", "--out", "mine.svg")
    assert (code, out) == (0, "mine.svg\n")
    picture = (tmp_path / "mine.svg").read_text()
    assert all(text in picture for text in ("Mine", "environment steps", "threshold -100"))


def test_plot_leaves_out_what_is_not_one_run(mfpo, trained, tmp_path, monkeypatch):
    path, _, _ = trained
    monkeypatch.chdir(tmp_path)
    shutil.copytree(path, "sweep/agents=2/seed-0")
    assert mfpo("plot", "sweep", path) == (
        0,
        f"{path / 'curve.png'}\n",
        "mfpo: left out, as it is not one run: sweep\n",
    )
    code, out, err = mfpo("plot", "sweep")
    assert (code, out) == (2, "") and "sweep is not a run: it has no config.toml" in err


def test_a_run_succeeds_without_matplotlib_and_says_how_to_get_it(mfpo, trained, tmp_path, monkeypatch):
    copy = shutil.copytree(trained[0], tmp_path / "run")
    (copy / "curve.png").unlink()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = mfpo("resume", copy)
    assert code == 0
    assert "pip install 'mfpo[plot]'" in err
    assert "not drawn" in out


def test_commands_are_printed_as_they_can_be_typed(mfpo, trained, tmp_path, monkeypatch):
    path, _, _ = trained
    program = tmp_path / "bin" / "mfpo"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(program)])
    monkeypatch.setenv("PATH", "")
    assert f"{program} play {path}" in mfpo("resume", path)[1]
    monkeypatch.setenv("PATH", str(program.parent))
    assert f" mfpo play {path}" in mfpo("resume", path)[1]


@pytest.fixture(scope="module")
def interrupted(program, tmp_path_factory):
    """Start a run that would never end and stop it after two rounds; how it ended, by the name of the signal."""

    def stop(name):
        path = tmp_path_factory.mktemp(name) / "a run"  # the blank must be quoted in the command that is printed
        process = program("train", "CartPole-v1", *ENDLESS, "--out", path, "--tensorboard")
        shown = []
        for line in process.stderr:
            shown.append(line)
            if line.startswith("round 2/"):
                process.send_signal(getattr(signal, name))
                break
        out, err = process.communicate(timeout=120)
        return path, process.returncode, out, "".join(shown) + err

    return stop


@pytest.fixture(scope="module")
def stopped(interrupted):
    return interrupted("SIGINT")


def test_ctrl_c_exits_130_and_says_how_to_go_on(stopped):
    path, code, out, err = stopped
    assert code == 130, err
    assert out == ""
    last = err.splitlines()[-1]
    assert re.fullmatch(rf"mfpo: interrupted after round \d+; go on with: mfpo resume '{re.escape(str(path))}'", last)
    assert "Traceback" not in err


def test_a_polite_kill_does_the_same(interrupted):
    path, code, _, err = interrupted("SIGTERM")
    assert code == 143, err
    assert f"mfpo resume '{path}'" in err.splitlines()[-1]


def test_a_stopped_run_goes_on_and_its_events_have_no_step_twice(stopped, program, tmp_path):
    path = shutil.copytree(stopped[0], tmp_path / "run")
    done = load_metrics(path)[-1]["round"]
    process = program("resume", path, "--rounds", done + 2, "--json", "--tensorboard")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert (summary["rounds"], summary["path"]) == (done + 2, str(path))
    assert [row["round"] for row in load_metrics(path)] == list(range(1, done + 3))
    events = b"".join(file.read_bytes() for file in (path / "tensorboard").iterdir())
    assert events.count(b"return_mean") == done + 2


def test_a_truncated_checkpoint_is_replaced_by_the_one_before(stopped, program, tmp_path):
    path = shutil.copytree(stopped[0], tmp_path / "run")
    newest = max((path / "checkpoints").iterdir(), key=lambda file: file.name)
    newest.write_bytes(newest.read_bytes()[:-40])
    done = load_metrics(path)[-1]["round"]
    process = program("resume", path, "--rounds", done, "--quiet")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert newest.name in err and err.startswith("mfpo: ")
    assert "fresh episodes" in out
    assert [row["round"] for row in load_metrics(path)] == list(range(1, done + 1))
