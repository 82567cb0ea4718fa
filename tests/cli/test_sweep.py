"""`mfpo sweep`: its runs are those of `mfpo train`, to the bit, and mistakes cost nothing."""

import json
import signal
import sys

import pytest

from mfpo.reporting.records import load_metrics

pytestmark = pytest.mark.xdist_group("training")  # with the tests that compile the same tiny program

TINY = (
    "--agents 2 --local-steps 1 --trajectories 2 --hidden 4 --step plain --stepsize 0.01 --baseline none "
    "--no-normalise-observations --evaluation-episodes 3"
).split()


def finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out, err


@pytest.fixture(scope="module")
def swept(program, tmp_path_factory):
    """Rounds are swept, for they need one program only; on two devices."""
    path = tmp_path_factory.mktemp("swept") / "rounds"
    command = ("sweep", "CartPole-v1", *TINY, "--rounds", "1,2", "--seeds", 2, "--threshold", 1, "--out", path)
    out, err = finish(program(*command, "--json", "--tensorboard", env={"JAX_NUM_CPU_DEVICES": "2"}))
    return path, out, err, command


def numbers(path):
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in load_metrics(path)]


def test_each_seed_is_what_it_is_alone_on_one_device(program, swept, tmp_path):
    for seed in (0, 1):
        alone, together = tmp_path / f"{seed}", swept[0] / "rounds=2" / f"seed-{seed}"
        finish(program("train", "CartPole-v1", *TINY, "--rounds", 2, "--seed", seed, "--devices", 1, "--out", alone))
        assert numbers(together) == numbers(alone) and len(numbers(alone)) == 2
        for file in ("policy.safetensors", "policy.json"):
            assert (together / file).read_bytes() == (alone / file).read_bytes()
        evaluations = [json.loads((run / "summary.json").read_text())["evaluation"] for run in (together, alone)]
        assert evaluations[0] == evaluations[1]


def test_it_prints_and_writes_what_it_found(mfpo, swept):
    path, out, err, command = swept
    printed = json.loads(out)
    assert (printed["path"], printed["option"], printed["threshold"]) == (str(path), "rounds", 1)
    assert [(row["value"], row["seeds"], row["reached"]) for row in printed["values"]] == [(1, 2, 2), (2, 2, 2)]
    assert err.startswith(f"mfpo: rounds 1, 2, 2 seeds each: {path}\n") and "(4 of 4 runs)" in err
    assert {file.name for file in path.iterdir()} == {
        *("rounds=1", "rounds=2", "sweep.md", "sweep.json"),
        *("curves-rounds.png", "curves-trajectories.png", "threshold.png"),
    }
    assert list((path / "rounds=2" / "seed-1" / "tensorboard").iterdir())
    code, table, err = mfpo(*command, "--quiet")
    assert (code, err) == (0, "")
    assert table.startswith((path / "sweep.md").read_text()) and table.endswith("threshold.png\n")


def test_the_numbers_are_there_without_matplotlib(mfpo, swept, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = mfpo(*swept[3], "--quiet")
    assert (code, out) == (0, (swept[0] / "sweep.md").read_text())
    assert err.count("\n") == 1 and "pip install 'mfpo[plot]'" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("", "Nothing is swept; give one option that is a number several values, as in --agents 1,2,5."),
        ("--agents 5", "Nothing is swept;"),
        ("--agents 1,2 --local-steps 1,2", "--agents and --local-steps both have several values; sweep one"),
        ("--agents 1,2,2", "--agents names 2 twice; name each value once."),
        ("--agents 1,,2", "--agents: '' is not a whole number."),
        ("--agents 1,x", "--agents: 'x' is not a whole number."),
        ("--stepsize -1,0.1", "--stepsize is -1.0, but it must be above 0."),
        ("--agents 1,2 --seeds 0", "--seeds is 0, but it must be at least 1."),
        ("--agents 1,2 --seed 3", "There is no option --seed of `mfpo sweep`. Did you mean --seeds"),
        ("--step plain,natural", "Nothing is swept; give one option that is a number"),
        ("--agents 2,4 --preset papre", "There is no preset 'papre'"),
        ("--agents 2,4 --byzantine 3", "--byzantine is 3, but there are only 2 agents; give at most that."),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(mfpo, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, out, err = mfpo("sweep", "CartPole-v1", "--quiet", *arguments.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("mfpo: ") and sentence in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "trains"),
    [("sweep --agents 1,2", "mfpo.runs.sweep.run"), ("compare --algorithms mfpo", "mfpo.runs.entries.run")],
)
def test_one_who_interrupts_is_told_to_repeat_the_command(mfpo, tmp_path, monkeypatch, command, trains):
    def interrupt(*_, **__):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(trains, interrupt)
    name, *options = command.split()
    code, out, err = mfpo(name, "CartPole-v1", *options, "--seeds", 1, "--quiet", "--out", tmp_path / "all")
    assert (code, out) == (130, "")
    assert err == "mfpo: interrupted; every round that was over is stored. Repeat the command to go on.\n"


def test_help_shows_the_studies(mfpo):
    code, out, _ = mfpo("sweep", "--help")
    assert code == 0
    assert "mfpo sweep CartPole-v1 --agents 1,2,5,10,20,50 --seeds 10" in out and "--threshold X" in out
