"""Runs on environments outside the compiled program, from a user's file to the resumed run."""

import ctypes
import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from mfpo import algorithms, envs
from mfpo.cli import main
from mfpo.config import build
from mfpo.federation import Faults, make_engine
from mfpo.runs.directory import CHECKPOINTS

OWN = """
import gymnasium, numpy as np

class Line(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    trouble, steps, well = "", 0, 270

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.normal()
        return np.array([self.x], np.float32), {}

    def step(self, action):
        Line.steps += 1
        self.x += 0.1 if action else -0.1
        reward, ill = -abs(self.x), Line.steps > Line.well
        if ill and Line.trouble == "raise":
            raise RuntimeError("the wheel came off")
        if ill and Line.trouble == "exit":
            raise SystemExit(0)
        if ill and Line.trouble == "nan":
            reward = float("nan")
        return np.array([self.x], np.float32), reward, False, False, {}

class Room(Line):
    def __init__(self, size=1, depth=1):
        self.corner = 1 / size
        self.observation_space = gymnasium.spaces.Box(-9, 9, (size,))

gymnasium.register("Room-v0", Room, max_episode_steps=20)
gymnasium.register("Line-v0", Line, max_episode_steps=20)
gymnasium.register("Endless-v0", Line)
"""
SMALL = (
    "--agents 2 --local-steps 2 --trajectories 3 --hidden 8 --baseline time --step normalised --stepsize 0.3 "
    "--evaluation-episodes 4 --quiet"
).split()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A user's file in the working directory; the class that can be told to fail. 240 steps are a round."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    for name in ("Room-v0", "Line-v0", "Endless-v0"):
        gymnasium.registry.pop(name, None)
    return importlib.import_module("own").Line


def train(*arguments: str) -> int:
    return main(["train", "own:Line-v0", *SMALL, *arguments])


def test_a_run_goes_on_where_it_was_stopped_to_the_same_numbers(own: Any, tmp_path: Path) -> None:
    assert train("--rounds", "3", "--out", "whole") == 0
    assert train("--rounds", "1", "--out", "part") == 0
    assert main(["resume", "part", "--rounds", "3", "--quiet"]) == 0
    files = [(tmp_path / run / "policy.safetensors").read_bytes() for run in ("whole", "part")]
    assert files[0] == files[1]
    summaries = [json.loads((tmp_path / run / "summary.json").read_text()) for run in ("whole", "part")]
    assert summaries[0]["evaluation"] == summaries[1]["evaluation"]
    assert summaries[0]["env_steps"] == 3 * 2 * 2 * 3 * 20


def test_the_devices_that_sample_are_those_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three agents cannot be spread over two devices, but their episodes can; a resumed run must sample likewise."""
    env = envs.make("InvertedPendulum-v5")
    algorithm = algorithms.make("mfpo", build(algorithms.config_class("mfpo"), {}, "test"), env.spec, 3)
    two = jax.devices() * 2
    monkeypatch.setattr(jax, "devices", lambda: two)
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    for asked, used in ((0, 2), (1, 1), (2, 2), (5, 2)):
        assert make_engine("inprocess", algorithm, env, 3, seed=0, devices=asked).devices == used


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("raise", "RuntimeError: the wheel came off"),
        ("exit", "SystemExit: 0"),
        ("nan", "it gave a reward that is not finite"),
    ],
)
def test_an_environment_that_fails_costs_one_round(
    own: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], trouble: str, words: str
) -> None:
    own.trouble = trouble
    assert train("--rounds", "2", "--out", "run") == 2
    said = capsys.readouterr().err
    # the 31st step of round 2: 3 episodes of 2 agents side by side, so it is agent 0 in the 6th step of its episode
    assert f"The environment own:Line-v0 of agent 0 failed in step 6 of its episode: {words}" in said
    assert "(round 2, step 0)" in said and "mfpo resume run" in said
    assert [path.name for path in (tmp_path / "run" / CHECKPOINTS).iterdir()] == ["round-000001.safetensors"]
    own.trouble = ""
    assert main(["resume", "run", "--quiet"]) == 0
    own.trouble = "none"
    assert train("--rounds", "2", "--out", "whole") == 0
    one, two = ((tmp_path / run / "policy.safetensors").read_bytes() for run in ("run", "whole"))
    assert one == two


def test_what_an_environment_prints_is_not_in_the_json(own: Any, capfd: pytest.CaptureFixture[str]) -> None:
    step = own.step

    def talk(self: Any, action: Any) -> Any:
        print("a step")
        ctypes.CDLL(None).printf(b"another step\n")  # written when C has enough of it
        return step(self, action)

    own.step = talk
    for arguments in (["train", "own:Line-v0", *SMALL, "--rounds", "1", "--out", "run"], ["evaluate", "run"]):
        assert main([*arguments, "--json"]) == 0
        out, err = capfd.readouterr()
        assert json.loads(out)["env" if arguments[0] == "train" else "mean"]
        assert "a step" in err and "another step" in err


@pytest.mark.parametrize("options", ["--rounds 2 --evaluation-every 1", "--rounds 1"])
def test_an_environment_that_fails_while_the_policy_is_judged_costs_no_round(
    own: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str
) -> None:
    own.trouble, own.well = "raise", 250
    assert train(*options.split(), "--out", "run") == 2
    said = capsys.readouterr().err
    assert "the wheel came off, in line 19 of own.py (evaluation after round 1)" in said and "mfpo resume run" in said
    assert [path.name for path in (tmp_path / "run" / CHECKPOINTS).iterdir()] == ["round-000001.safetensors"]
    own.trouble = ""
    assert main(["resume", "run", "--quiet"]) == 0
    assert train(*options.split(), "--out", "whole") == 0
    one, two = ((tmp_path / run / "policy.safetensors").read_bytes() for run in ("run", "whole"))
    assert one == two


def test_an_environment_without_an_end_needs_a_horizon(own: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "own:Endless-v0", *SMALL]) == 2
    assert "own:Endless-v0 has no time limit of its own; give one with --horizon" in capsys.readouterr().err
    assert main(["train", "own:Endless-v0", *SMALL, "--horizon", "7", "--rounds", "1", "--out", "run"]) == 0
    assert json.loads(Path("run/summary.json").read_text())["env_steps"] == 2 * 2 * 3 * 7


@pytest.mark.parametrize(
    ("world", "sentence"),
    [
        ("size=1,0", "own:Room-v0 cannot be made with size=0: ZeroDivisionError"),
        (
            "size=1,2",
            "With size=2, own:Room-v0 has observations of shape (2,), and not (1,) as in another agent's world",
        ),
    ],
)
def test_a_world_that_cannot_be_is_found_before_a_run_directory_is_made(
    own: Any, capsys: pytest.CaptureFixture[str], world: str, sentence: str
) -> None:
    assert main(["train", "own:Room-v0", *SMALL, "--world", world, "--rounds", "1", "--out", "run"]) == 2
    assert sentence in capsys.readouterr().err
    assert not Path("run").exists()


@pytest.mark.parametrize("options", [["--reference-every", "1"], ["--algorithm", "fedpg_br"]])
def test_the_servers_own_world_is_looked_at_before_a_run_directory_is_made(
    own: Any, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    shared = ["--agents", "2", "--rounds", "1", "--trajectories", "3", "--hidden", "4", "--quiet", "--out", "run"]
    different = [*shared, "--world", "size=2 depth=1,2", *options]
    assert main(["train", "own:Room-v0", *different]) == 2
    assert (
        "With its own parameters, own:Room-v0 has observations of shape (1,), and not (2,)" in capsys.readouterr().err
    )
    assert not Path("run").exists()


def test_the_example_of_the_documentation_learns_in_different_worlds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(Path(__file__).parents[2] / "examples", tmp_path / "examples")
    arguments = "--agents 3 --world insulation=0.5..2 --rounds 4 --trajectories 5 --local-steps 5 --stepsize 0.3"
    more = "--baseline time --step normalised --hidden 16 --evaluation-episodes 10 --quiet --out run"
    assert main(["train", "examples.heating:Heating-v0", *arguments.split(), *more.split()]) == 0
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    outcome = json.loads(Path("run/summary.json").read_text())["evaluation"]
    assert rows[-1]["return_mean"] > rows[0]["return_mean"] + 40
    assert len(outcome["agents"]) == 3 and len(set(outcome["agents"])) == 3
    assert outcome["mean"] == pytest.approx(np.mean(outcome["agents"]))
    capsys.readouterr()
    assert main(["evaluate", "run"]) == 0
    first, *each = capsys.readouterr().out.splitlines()
    assert "over 30 episodes" in first and [line.split()[:2] for line in each] == [["agent", str(i)] for i in range(3)]
    assert [line.split()[-1] for line in each] == ["insulation=0.5", "insulation=1.25", "insulation=2.0"]
    assert [float(line.split()[2].replace("−", "-")) for line in each] == pytest.approx(outcome["agents"], abs=0.06)


@pytest.mark.parametrize(("env_steps", "faults"), [(0, Faults()), (200, Faults(1, "stale", dropout=0.4))])
@pytest.mark.slow
def test_engines_agree_on_a_hosted_environment(env_steps: int, faults: Faults) -> None:
    env = envs.make("InvertedPendulum-v5")
    values = {"local_steps": 2, "trajectories": 2, "hidden": [8], "value_hidden": [8], "value_updates": 2}
    values |= {"env_steps": env_steps, "step": "normalised"}
    algorithm = algorithms.make("mfpo", build(algorithms.config_class("mfpo"), values, "test"), env.spec, 2)
    states = []
    for name in ("inprocess", "debug"):
        engine = make_engine(name, algorithm, env, 2, seed=0, faults=faults)
        state = engine.start()
        for number in (1, 2):
            state, log = engine.round(state, number)
        states.append(state)
        assert log.returns.shape == log.lengths.shape == (2, log.answered, 2)
        if env_steps:
            assert (log.lengths == 100).all()
    for one, two in zip(*(jax.tree.leaves(state) for state in states), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)
