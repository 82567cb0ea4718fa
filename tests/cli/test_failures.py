"""What fails outside this library, or only in combination: one sentence on stderr, exit code 2, and what to do next.

Environments without a time limit, and more kinds of failure, are in `tests/runs/test_hosted_runs.py`.
"""

import sys

import gymnasium
import pytest

from mfpo import envs
from mfpo.envs import atari, mujoco
from mfpo.reporting.records import load_metrics

# Of 2 agents with an episode of 5 steps each, 10 steps are a round, and the 14th is agent 1's second in round 2.
ROBOT = """
import gymnasium, numpy as np

class Robot(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.normal()
        return np.array([self.x], np.float32), {}

    def step(self, action):
        Robot.steps += 1
        self.x += 0.1 if action else -0.1
        observation, reward = np.array([self.x], np.float32), -abs(self.x)
        if Robot.steps == 14:
            TROUBLE
        return observation, reward, False, False, {}

gymnasium.register("Robot-v0", Robot, max_episode_steps=5)
"""
TINY = (
    "--agents 2 --rounds 2 --local-steps 1 --trajectories 1 --hidden 4 --step plain --stepsize 0.01 --baseline none "
    "--no-normalise-observations --evaluation-episodes 1"
).split()


@pytest.fixture
def run(program, tmp_path):
    """Run `mfpo` to its end in an empty folder, as a program: the exit code, stdout and the lines of stderr."""

    def call(*arguments):
        every = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}  # the same programs again and again
        process = program(*arguments, cwd=tmp_path, env=every)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err.splitlines()

    return call


@pytest.mark.xdist_group("failures")  # one worker, so that programs are compiled once
@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ('raise RuntimeError("the wheel came off")', "RuntimeError: the wheel came off, in line 19 of robot.py"),
        ("observation[:] = np.nan", "it gave an observation that is not finite in 32 bits"),
        ("reward = np.inf", "it gave a reward that is not finite in 32 bits"),
    ],
    ids=["raise", "nan", "inf"],
)
def test_a_run_goes_on_when_the_file_of_its_environment_is_mended(run, tmp_path, trouble, words):
    file = tmp_path / "robot.py"
    file.write_text(ROBOT.replace("TROUBLE", trouble))
    code, out, lines = run("train", "robot:Robot-v0", *TINY, "--out", "run")
    assert (code, out) == (2, "")
    assert [line.split(" ", 2)[:2] for line in lines] == [
        ["robot:Robot-v0,", "mfpo,"],
        ["round", "1/2"],
        ["mfpo:", "The"],
    ]
    where = "The environment robot:Robot-v0 of agent 1 failed in step 2 of its episode"
    assert lines[-1].startswith(f"mfpo: {where}: {words} (round 2, step 0). ") and "mfpo resume run" in lines[-1]
    assert [row["round"] for row in load_metrics(tmp_path / "run")] == [1]

    file.write_text(ROBOT.replace("TROUBLE", "pass"))
    code, out, lines = run("resume", "run")
    assert code == 0, lines
    assert "over 1 fresh episodes" in out
    assert [row["round"] for row in load_metrics(tmp_path / "run")] == [1, 2]


@pytest.fixture
def refused(mfpo, no_training, tmp_path):
    """The sentence that `mfpo train` with these arguments is refused with. Nothing may be written."""

    def call(*arguments):
        code, out, err = mfpo("train", *arguments, "--out", tmp_path / "run")
        assert (code, out) == (2, "")
        assert err.startswith("mfpo: ") and err.count("\n") == 1
        assert list(tmp_path.iterdir()) == []
        return err.removeprefix("mfpo: ").rstrip("\n")

    return call


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("CartPole-v1 --world length=-1", "The world of CartPole-v1 has length = -1, which has to be finite and"),
        ("CartPole-v1 --agents 2 --world length=0.5,0", "The world of CartPole-v1 has length = 0, which has to be"),
        (
            "Pendulum-v1 --world g=-10",
            "The world of Pendulum-v1 has g = -10, which has to be finite and 0 or more, in 32 bits.",
        ),
        ("HalfCheetah-v5 --agents 2 --world mass=1..0", "The world of HalfCheetah-v5 has mass = 0.0, which has to be"),
        ("ALE/Pong-v5 --world sticky=2", "The world of ALE/Pong-v5 has sticky = 2, a probability"),
        (
            "CartPole-v1 --agents 10 --byzantine 6 --aggregation krum",
            "The aggregation rule krum withstands at most 3 Byzantine agents of 10, but 6 are assumed; ",
        ),
        (
            "CartPole-v1 --agents 10 --participation 0.05",
            "--participation 0.05 of 10 agents selects nobody; give at least 0.1.",
        ),
    ],
)
def test_settings_that_are_impossible_together_are_found_before_anything_is_written(refused, arguments, sentence):
    assert refused(*arguments.split()).startswith(sentence)


class Arms(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.MultiDiscrete([2, 3])


def test_an_algorithm_that_cannot_take_the_actions_names_one_that_can(refused):
    gymnasium.register("Arms-v0", Arms, max_episode_steps=5)
    try:
        sentence = refused("Arms-v0", "--algorithm", "fed_sac")
    finally:
        del gymnasium.registry["Arms-v0"]
    assert sentence == "fed_sac cannot take several discrete actions at once, as Arms-v0 does; use fed_dqn."


@pytest.fixture
def forgetful():
    """What was loaded before must not hide that it is missing, nor the other way round."""
    caches = envs._make, mujoco.load, atari.load
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize(
    ("env", "package", "extra"), [("Hopper-v5", "mujoco", "mujoco"), ("ALE/Pong-v5", "ale_py", "atari")]
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(refused, monkeypatch, env, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    assert refused(env) == f"{env} needs an optional package; install it with: pip install 'mfpo[{extra}]'"


@pytest.mark.usefixtures("forgetful")
def test_a_missing_rom_is_named_with_its_place(refused, monkeypatch, tmp_path):
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    sentence = refused("ALE/Pong-v5")
    assert sentence.startswith("The ROM of ALE/Pong-v5 could not be read: ") and str(tmp_path / "pong.bin") in sentence
    assert "unset ALE_ROMS_DIR" in sentence


@pytest.mark.parametrize(("error", "what"), [(MemoryError(), "memory. "), (MemoryError("9 GB"), "memory: 9 GB. ")])
def test_too_little_memory_is_told_with_its_reason_if_there_is_one(mfpo, monkeypatch, error, what):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr("mfpo.reporting.curves.save_figure", fail)
    sentence = f"mfpo: There is not enough {what}Smaller networks, batches or replays need less.\n"
    assert mfpo("plot", "run") == (2, "", sentence)


@pytest.mark.parametrize("command", ["plot", "play", "evaluate", "resume"])
def test_a_name_that_no_file_can_have_is_told(mfpo, command):
    code, out, err = mfpo(command, "x" * 300)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("mfpo: ") and "file name too long" in err.lower()


def test_a_name_that_no_folder_can_have_is_not_watched(mfpo):
    code, out, err = mfpo("watch", "x" * 300)
    assert (code, out) == (2, "") and err.startswith(f"mfpo: {'x' * 300} does not exist; give a run directory")
