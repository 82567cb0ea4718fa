"""Gymnasium environments that other processes step."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from mfpo import envs
from mfpo.cli import main
from mfpo.envs import gymnasium_env
from mfpo.envs.processes import Remote, in_processes
from mfpo.errors import ConfigError, CopyFailed, MfpoError, MissingExtra, StepFailed
from mfpo.hosted import episode_sampler

OWN = """
import os, signal, sys, time, gymnasium, numpy as np

def note(what):
    with open(what, "a") as file:
        file.write(f"{os.getpid()}\\n")

class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-99, 99, (2,))
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, trouble="", start=0.0):
        note("opened")
        self.trouble, self.start = trouble, start
        if trouble == "begin":
            os._exit(4)
        if trouble == "stuck" and str(os.getpid()) != os.environ["TESTED_IN"]:
            print("stuck", file=sys.stderr, flush=True)
            time.sleep(1000.0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        print("a walk begins")
        self.x = self.start + self.np_random.normal(size=2)
        return self.x.astype(np.float32), {}

    def step(self, action):
        print("a step")
        self.x += self.np_random.normal(size=2) + action - 1
        if self.trouble == "raise" and self.x[0] > 1:
            raise RuntimeError("lost")
        if self.trouble == "exit":
            os._exit(3)
        if self.trouble == "interrupt":
            raise KeyboardInterrupt
        if self.trouble in ("slow", "hang"):
            time.sleep(1.0 if self.trouble == "slow" else 1000.0)
        if self.trouble == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return self.x.astype(np.float32), float(-abs(self.x).sum()), bool(self.x[1] > 3), False, {"pid": os.getpid()}

    def close(self):
        note("closed")

gymnasium.register("Walk-v0", Walk, max_episode_steps=12)
"""
EVERYONE = np.arange(5)
SEEDS = np.arange(5, dtype=np.uint64)


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user's file in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mfpo.envs.processes.PATIENCE", 60.0)  # on a busy machine, too, a process ends by itself
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "walks.py").write_text(OWN)
    yield
    sys.modules.pop("walks", None)
    gymnasium.registry.pop("Walk-v0", None)


def opened(world: str = "", copies: int = 5) -> Any:
    """So many copies, in this process and in another."""
    each = [dict(pairs) for pairs in envs.make("walks:Walk-v0", 0, world, copies).worlds] or [{}] * copies
    env = gymnasium_env.make("walks:Walk-v0", 0, each[0])
    return env.open(each), in_processes(env, 0, each[0], 1).open(each)


def test_another_process_steps_as_this_one_does(capfd: pytest.CaptureFixture[str]) -> None:
    here, there = opened("start=0,1,2,3,4")
    rng = np.random.default_rng(0)
    for copies in (here, there):
        copies.reset(EVERYONE, SEEDS)
    for h in range(30):
        which = np.sort(rng.permutation(5)[: 1 + h % 5])
        action = rng.integers(3, size=len(which)).astype(np.int32)
        for expected, found in zip(here.step(which, action), there.step(which, action), strict=True):
            assert (found is expected is None) or (found.dtype == expected.dtype and np.array_equal(found, expected))
        if h % 7 == 6:
            seeds = None if h == 6 else SEEDS[which] + h
            assert np.array_equal(here.reset(which, seeds), there.reset(which, seeds))
    here.close()
    there.close()
    said = capfd.readouterr()
    assert said.err.count("a walk begins") == said.out.count("a walk begins") > 5  # theirs is on standard error


def test_it_is_another_process_and_ends_when_it_is_closed() -> None:
    _, there = opened()
    process = there._process
    assert process.poll() is None and process.pid != os.getpid()
    there.close()
    there.close()
    assert process.poll() == 0


def test_an_environment_that_raises_is_told_as_here() -> None:
    failures = []
    for copies in opened("trouble=raise"):
        copies.reset(EVERYONE, SEEDS)
        with pytest.raises(CopyFailed) as failure:
            for _ in range(50):
                copies.step(EVERYONE, np.full(5, 2))
        failures.append((failure.value.copy, str(failure.value)))
        copies.close()
    assert failures[0] == failures[1] and failures[0][1] == "RuntimeError: lost, in line 31 of walks.py"


@pytest.mark.parametrize(("trouble", "how"), [("exit", "exit code 3"), ("kill", r"signal 9 \(SIGKILL\)")])
def test_a_process_that_ends_is_told(trouble: str, how: str) -> None:
    _, there = opened(f"trouble={trouble}")
    there.reset(EVERYONE, SEEDS)
    with pytest.raises(CopyFailed, match=f"^the process that steps it ended: {how}$") as failure:
        there.step(EVERYONE[2:], np.zeros(3, np.int32))
    assert failure.value.copy == 2
    there.close()


def test_an_interrupt_of_an_environments_own_is_its_failure(capfd: pytest.CaptureFixture[str]) -> None:
    _, there = opened("trouble=interrupt")
    there.reset(EVERYONE, SEEDS)
    with pytest.raises(CopyFailed, match="^KeyboardInterrupt"):
        there.step(EVERYONE, np.zeros(5, np.int32))
    there.close()
    assert "Traceback" not in capfd.readouterr().err


def test_an_interrupted_call_leaves_no_answer_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    _, there = opened()
    monkeypatch.setattr("mfpo.envs.processes.pickle.load", lambda file: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        there.reset(EVERYONE, SEEDS)
    assert there._process.poll() == 0
    assert _times("closed", there._process.pid) == _times("opened", there._process.pid) >= 5


def test_a_process_that_ends_at_once_is_told() -> None:
    with pytest.raises(
        StepFailed, match="^The environment walks:Walk-v0 could not be opened in a .* ended: exit code 4"
    ):
        Remote().open("walks:Walk-v0", 0, {}, [{"trouble": "begin"}])


def test_an_environment_that_only_this_process_knows_is_told() -> None:
    gymnasium.register("Here-v0", gymnasium.spec("CartPole-v1").entry_point, max_episode_steps=3)
    try:
        env = gymnasium_env.make("Here-v0")
        with pytest.raises(ConfigError, match="Here-v0 is only registered in this process.* package.module:EnvId"):
            in_processes(env, 0, {}, 2).open([{}])
    finally:
        del gymnasium.registry["Here-v0"]


def test_it_finds_what_this_process_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, Path("elsewhere")])  # a mistake that Python overlooks
    here, there = opened()
    assert np.array_equal(here.reset(EVERYONE, SEEDS), there.reset(EVERYONE, SEEDS))
    there.close()


@pytest.mark.parametrize("error", [CopyFailed(3, "lost"), MissingExtra("Hopper-v5", "mujoco"), ConfigError("no")])
def test_failures_come_over_whole(error: MfpoError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error) and (str(found), vars(found)) == (str(error), vars(error))


def test_impossible_worlds_are_told_as_here() -> None:
    env = gymnasium_env.make("walks:Walk-v0")
    for where in (env, in_processes(env, 0, {}, 1)):
        with pytest.raises(
            ConfigError, match="sets 'begin', which walks:Walk-v0 does not take. It takes trouble, start"
        ):
            where.open([{"begin": 1.0}])


@pytest.mark.parametrize("name", ["CartPole-v1", "Hopper-v5", "ALE/Pong-v5"])
def test_environments_that_use_all_cores_need_none(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--processes was given, but {name} uses every core in this one; leave it"):
        envs.make(name, processes=2)


ORPHAN = """
import sys, numpy as np
from mfpo.envs.processes import Remote
copies = Remote()
copies.open("walks:Walk-v0", 0, {}, [{"trouble": sys.argv[1]}])
print(copies._process.pid, flush=True)
copies.reset(np.arange(1), None)
copies.step(np.arange(1), np.zeros(1, np.int32))
sys.stdin.read()
"""


@pytest.mark.parametrize("trouble", ["", "slow"])
def test_it_does_not_outlive_the_process_it_works_for(trouble: str) -> None:
    """Whether that is killed between two calls or during one, its environments are closed, and nothing is said."""
    with open("said", "w") as said:
        orphan = [sys.executable, "-c", ORPHAN, trouble]
        parent = subprocess.Popen(orphan, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    _wait_until(lambda: "a step" in Path("said").read_text())
    parent.kill()
    parent.communicate()
    _wait_until(lambda: not _runs(child))
    assert _times("closed", child) == _times("opened", child) > 0
    assert Path("said").read_text() == "a walk begins\na step\n"


def _times(what: str, pid: int) -> int:
    return Path(what).read_text().split().count(str(pid))


def _wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


SMALL = (
    "--agents 2 --local-steps 2 --trajectories 3 --hidden 8 --baseline time --step normalised --stepsize 0.3 "
    "--evaluation-episodes 4 --rounds 2 --quiet"
).split()


def test_a_run_is_the_same_whoever_steps(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    opened_here: list[Remote] = []
    of_class = Remote.__init__
    monkeypatch.setattr(Remote, "__init__", lambda self, *a: (opened_here.append(self), of_class(self, *a))[1])
    policies = []
    for n in (0, 1, 3):
        opened_here.clear()
        run = f"run{n}"
        assert main(["train", "walks:Walk-v0", *SMALL, "--processes", str(n), "--out", run]) == 0
        assert len(opened_here) == (2 * n + 1 if n else 0)  # once to see whether it works, to learn, to be judged
        policies.append(Path(run, "policy.safetensors"))
        assert all(remote._process.poll() == 0 for remote in opened_here)
    assert policies[0].read_bytes() == policies[1].read_bytes()
    # policies that are evaluated for fewer copies at once may round otherwise
    expected, found = load_file(policies[0]), load_file(policies[2])
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(values, found[name], rtol=1e-3, atol=1e-4)


def test_a_process_that_ends_costs_one_round(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "walks:Walk-v0", *SMALL, "--processes", "2", "--world", "trouble=kill", "--out", "run"]) == 2
    said = capfd.readouterr().err
    assert "walks:Walk-v0 of agent 0 failed in step 1 of its episode: the process that steps it ended: signal 9" in said
    assert "mfpo resume run" in said and "Traceback" not in said


@pytest.mark.parametrize(("trouble", "sign"), [("hang", "a step"), ("stuck", "stuck")])
def test_an_interrupt_ends_processes_that_hang_or_never_open(
    trouble: str, sign: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Remote] = []
    of_class = Remote.__init__
    monkeypatch.setattr(Remote, "__init__", lambda self: (started.append(self), of_class(self))[1])
    monkeypatch.setattr("mfpo.envs.processes.PATIENCE", 0.1)
    monkeypatch.setenv("TESTED_IN", str(os.getpid()))
    env = envs.make("walks:Walk-v0", 0, f"trouble={trouble}", 2, 2)
    sampler = episode_sampler(env, lambda actor, obs, key: (jnp.int32(0), jnp.int32(0)), 2, 3)

    def interrupt() -> None:
        try:
            _wait_until(lambda: sign in capfd.readouterr().err)
            shown.append(sign)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    shown: list[str] = []
    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        sampler(jnp.zeros(2), jax.random.split(jax.random.key(0), 2), jnp.arange(2), jnp.int32(0))
    interrupter.join()
    assert shown and len(started) == 2 and all(remote._process.poll() is not None for remote in started)


# Behind a script's `&`, SIGINT is ignored, and a polite kill must do.
SCRIPTED = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from mfpo.cli import main; raise SystemExit(main())"
)


@pytest.mark.parametrize(
    ("number", "program", "code"), [(signal.SIGINT, ["-m", "mfpo"], 130), (signal.SIGTERM, ["-c", SCRIPTED], 143)]
)
def test_an_interrupt_ends_a_run_whose_processes_hang(number: int, program: list[str], code: int) -> None:
    command = [sys.executable, *program, "train", "walks:Walk-v0", *SMALL, "--world", "trouble=hang"]
    process = subprocess.Popen([*command, "--processes", "2"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "a step" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(number)
    _, said = process.communicate(timeout=100)
    assert process.returncode == code and "Traceback" not in said


def test_the_debug_engine_has_one_process(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "walks:Walk-v0", *SMALL, "--processes", "2", "--engine", "debug", "--out", "run"]) == 2
    assert "--engine debug goes from agent to agent in one process" in capfd.readouterr().err
    assert not Path("run").exists()
