"""A real federation on this machine: separate processes, TLS, keys; an agent and the server's app are killed meanwhile.

Takes minutes, most of them Flower's own waiting.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from mfpo.federation.flower.processes import free_port
from mfpo.runs import metrics, training
from mfpo.runs.settings import resolve_options

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("loopback")]
OPTIONS = {"hidden": "4", "horizon": "50", "local-steps": "2", "trajectories": "3", "seed": "5"}
ROUNDS = 6


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mfpo", *arguments]


class Processes:
    """`mfpo` commands in the background, each with its output in a file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.running = folder, dict[str, "subprocess.Popen[bytes]"]()

    def start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(command(*arguments), stdout=log, stderr=log)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def end(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait(60)


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    yield processes
    processes.end()


def wait(until: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, f"after {seconds} s: {what}"
        time.sleep(0.5)


def children(pid: int) -> dict[int, str]:
    """Processes below one, with their command lines."""
    found: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                number = int(path.parent.name)
                found[number] = (path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found |= children(number)
        except OSError:
            continue
    return found


def kill(processes: Processes, name: str, part: str) -> None:
    below = children(processes.running[name].pid)
    chosen = [pid for pid, line in below.items() if part in line]
    assert chosen, below
    os.kill(chosen[0], signal.SIGKILL)


def test_three_agents_over_tls_survive_kills_and_end_as_one_process_does(background: Processes, tmp_path: Path) -> None:
    cluster = str(tmp_path / "cluster")
    port = str(free_port())
    subprocess.run(command("federation", "init", cluster, "--agents", "3", "--port", port), check=True)
    background.start("server", "server", cluster)
    for number in range(3):
        background.start(f"agent{number}", "agent", f"{cluster}/agents/{number:02d}")
    wait(lambda: "the server is up" in background.said("server"), 300, "no server")
    flags = [text for name, value in OPTIONS.items() for text in (f"--{name}", value)]
    run = Path(cluster) / "runs" / "one"
    submitted = ("federation", "submit", cluster, "CartPole-v1", "--name", "one", "--rounds", str(ROUNDS), *flags)
    background.start("submit", *submitted, "--evaluation-episodes", "4", "--min-agents", "3")

    def rounds() -> list[dict[str, Any]]:
        return metrics.read(run / "metrics.jsonl")

    wait(lambda: len(rounds()) >= 1, 600, "no first round")
    kill(background, "agent1", "--worker")
    wait(lambda: len(rounds()) >= 3, 900, "no round after an agent was killed")
    kill(background, "server", "flwr-serverapp")
    wait(lambda: (run / "summary.json").exists(), 1200, "no end after the server's app was killed")
    assert background.running["submit"].wait(60) == 0

    options = {name.replace("-", "_"): int(value) for name, value in OPTIONS.items()} | {"hidden": (4,)}
    job = resolve_options({"env": "CartPole-v1", "agents": 3, "rounds": ROUNDS, "devices": 1, **options})
    alone = training.train(*job, out=tmp_path / "alone")
    assert (run / "policy.safetensors").read_bytes() == (alone.path / "policy.safetensors").read_bytes()
    assert [row["return_mean"] for row in rounds()] == [row["return_mean"] for row in alone.metrics]
    assert [row["bytes_up"] for row in rounds()] == [row["bytes_up"] for row in alone.metrics]
    assert "agent 1 has ended (code -9)" in background.said("agent1")
    assert "is submitted again" in background.said("server")
    said = subprocess.run(command("federation", "status", cluster), capture_output=True, text=True, check=True).stdout
    assert "agent 2: online" in said and f"one: finished, round {ROUNDS} of {ROUNDS}" in said
    nodes = json.loads((Path(cluster) / "server" / "nodes.json").read_text())
    assert sorted(nodes.values()) == [0, 1, 2]
