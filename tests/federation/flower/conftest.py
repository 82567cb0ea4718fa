"""Federations for tests: without a network, where messages are packed and a link may spoil them, and of processes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

NETS = {"hidden": (4,), "horizon": 50}
SMALL: dict[str, dict[str, Any]] = {
    "mfpo": {"env": "CartPole-v1", **NETS, "local_steps": 2, "trajectories": 3},
    "fedpg_br": {"env": "CartPole-v1", **NETS, "trajectories": 4, "server_trajectories": 2, "server_steps": 3},
    "fedavg_ppo": {"env": "CartPole-v1", **NETS},
    "fed_dqn": {"env": "CartPole-v1", **NETS, "local_steps": 2},
    "fed_sac": {"env": "Pendulum-v1", **NETS, "local_steps": 3},
}


class Direct:
    """A link to agents in this process. `spoil` may change an answer, lose it (None) or send others before it."""

    def __init__(self, agents: Sequence[Any], spoil: Callable[[int, Any], list[Any]] | None = None) -> None:
        self.agents, self.spoil = agents, spoil or (lambda agent, answer: [answer])
        self.seen: list[Any] = []

    def exchange(self, question: Any, wanted: Sequence[int]) -> Iterator[Any]:
        from mfpo.federation.flower import frames

        for i in wanted:
            answer = self.agents[i].answer(frames.unpack(frames.pack(question)))
            for spoilt in self.spoil(i, answer):
                self.seen += [question, spoilt]
                yield i, frames.unpack(frames.pack(spoilt))
            yield None


@pytest.fixture
def make_agents(tmp_path: Path) -> Callable[..., list[Any]]:
    """Fresh processes' worth of agents over the same folders each time it is called."""
    from mfpo.federation.flower.agent import Agent

    def make(count: int, notices: list[str] | None = None, **options: Any) -> list[Any]:
        said: list[str] = [] if notices is None else notices
        folders = [tmp_path / "agents" / f"{i:02d}" for i in range(count)]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        return [Agent(folder, i, said.append, **options) for i, folder in enumerate(folders)]

    return make


def job_of(name: str, **options: Any) -> tuple[Any, Any]:
    """Settings and config of a small run."""
    from mfpo.runs.settings import resolve_options

    return resolve_options(
        {"algorithm": name, "agents": 3, "rounds": 3, "seed": 5, "evaluation_episodes": 4, **SMALL[name], **options}
    )


def same_bits(one: Any, other: Any) -> bool:
    """Whether two trees hold the same numbers, bit for bit."""
    import jax
    import numpy as np

    x, y = ([np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)] for tree in (one, other))
    return x == y


class Cluster:
    """A federation on this machine: separate `mfpo` processes, each with its output in a file."""

    OPTIONS: ClassVar[dict[str, Any]] = {"hidden": 4, "horizon": 50, "local-steps": 2, "trajectories": 3, "seed": 5}

    def __init__(self, folder: Path) -> None:
        self.base, self.folder = folder, folder / "cluster"
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def mfpo(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """One command, to its end."""
        command = [sys.executable, "-m", "mfpo", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=600)

    def start(self, name: str, *arguments: str, inside: Sequence[str] = ()) -> None:
        """One command, in the background; `inside` another, such as one that enters a network namespace."""
        with (self.base / f"{name}.log").open("ab") as log:
            command = [*inside, sys.executable, "-m", "mfpo", *arguments]
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def start_agent(self, number: int, **options: Any) -> None:
        self.start(f"agent{number}", "agent", str(self.folder / "agents" / f"{number:02d}"), **options)

    def up(self, *flags: str) -> None:
        """A server and three agents."""
        from mfpo.federation.flower.processes import free_port

        made = self.mfpo("federation", "init", str(self.folder), "--agents", "3", "--port", str(free_port()), *flags)
        assert made.returncode == 0, made.stderr
        self.start("server", "server", str(self.folder))
        for number in range(3):
            self.start_agent(number)
        self.wait(lambda: "the server is up" in self.said("server"), 600, "no server")

    def submit(
        self, run: str, rounds: int, *flags: str, env: str = "CartPole-v1", inside: Sequence[str] = (), **options: Any
    ) -> Path:
        """A small run that needs all agents, started in the background."""
        chosen = {**self.OPTIONS, **options, "rounds": rounds, "evaluation-episodes": 4, "min-agents": 3}
        given = [text for name, value in chosen.items() for text in (f"--{name}", str(value))]
        command = ("federation", "submit", str(self.folder), env, "--name", run, *given, *flags)
        self.start("submit", *command, inside=inside)
        return self.folder / "runs" / run

    def alone(self, rounds: int, env: str = "CartPole-v1", **options: Any) -> Any:
        """The same run in this process."""
        from mfpo.runs import training
        from mfpo.runs.settings import resolve_options

        chosen = {name.replace("-", "_"): value for name, value in {**self.OPTIONS, **options}.items()}
        chosen |= {"hidden": (chosen["hidden"],), "evaluation_episodes": 4, "agents": 3, "devices": 1}
        job = resolve_options({"env": env, "rounds": rounds, **chosen})
        return training.train(*job, out=self.base / f"alone-{rounds}-{env}")

    def said(self, name: str) -> str:
        path = self.base / f"{name}.log"
        return path.read_text() if path.exists() else ""

    @staticmethod
    def rounds(run: Path) -> list[dict[str, Any]]:
        from mfpo.runs import metrics

        return metrics.read(run / "metrics.jsonl")

    @staticmethod
    def wait(until: Callable[[], bool], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < end, f"after {seconds} s: {what}"
            time.sleep(0.2)

    def kill(self, name: str, part: str = "") -> None:
        """kill -9 of a command with everything below it, or only of those below it whose command line has a part."""
        pid = self.running[name].pid
        below = _below(pid)
        chosen = [number for number, line in below.items() if part in line] if part else [pid, *below]
        assert chosen, below
        for number in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        if not part:
            self.running[name].wait(60)

    def end(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait(120)


def _below(pid: int) -> dict[int, str]:
    """Processes below one, with their command lines."""
    found: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                number = int(path.parent.name)
                found[number] = (path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found |= _below(number)
        except OSError:
            continue
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A federation, to be started; its processes end with the test."""
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.end()
