"""A real federation on this machine: separate processes, TLS, keys; the worst happens to them meanwhile.

Each takes minutes, most of them Flower's own waiting.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

POLICY = Path("alone-2-CartPole-v1") / "policy.safetensors"  # where `same_as_alone` left it
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("loopback")]


def same_as_alone(cluster: Any, run: Path, rounds: int) -> None:
    """Nothing was lost and nothing done twice: row by row and bit by bit the run of one process."""
    alone = cluster.alone(rounds)
    rows = cluster.rounds(run)
    assert [row["round"] for row in rows] == list(range(1, rounds + 1))
    for name in ("env_steps", "return_mean", "bytes_up", "bytes_down", "answered"):
        assert [row[name] for row in rows] == [row[name] for row in alone.metrics], name
    assert (run / "policy.safetensors").read_bytes() == (alone.path / "policy.safetensors").read_bytes()


def test_twenty_rounds_survive_kills_at_random_moments(cluster: Any) -> None:
    rounds, random_ = 20, random.Random(7)
    cluster.up()
    run = cluster.submit("one", rounds, "--round-timeout", "240")
    victims = ["agent", "worker", "server", "superlink", "app"]
    random_.shuffle(victims)
    moments = sorted(random_.sample(range(1, rounds - 1), len(victims)))
    for victim, moment in zip(victims, moments, strict=True):
        cluster.wait(lambda moment=moment: len(cluster.rounds(run)) >= moment, 1500, f"round {moment}, then {victim}")
        time.sleep(random_.uniform(0, 6))
        number = random_.randrange(3)
        if victim == "agent":
            cluster.kill(f"agent{number}")
            cluster.start_agent(number)
        elif victim == "worker":
            cluster.kill(f"agent{number}", "--worker")
        elif victim == "server":
            cluster.kill("server")
            cluster.start("server", "server", str(cluster.folder))
        else:
            cluster.kill("server", {"superlink": "flower-superlink", "app": "flwr-serverapp"}[victim])
    cluster.wait(lambda: (run / "summary.json").exists(), 1500, "no end")
    assert cluster.running["submit"].wait(60) == 0
    same_as_alone(cluster, run, rounds)
    assert "superlink has ended (code -9)" in cluster.said("server")
    assert "is submitted again" in cluster.said("server")
    said = cluster.mfpo("federation", "status", str(cluster.folder)).stdout
    assert said.count(": online") == 3 and f"one: finished, round {rounds} of {rounds}" in said
    nodes = json.loads((cluster.folder / "server" / "nodes.json").read_text())
    assert sorted(nodes.values()) == [0, 1, 2]
    lines = json.loads((run / "agents.json").read_text())["agents"]
    assert [line["round"] for line in lines] == [rounds] * 3


def test_a_rogue_and_a_copied_folder_are_refused_and_a_run_stops_and_goes_on(cluster: Any, tmp_path: Path) -> None:
    cluster.up()
    run = cluster.submit("one", 8, "--detach")
    assert cluster.running["submit"].wait(120) == 0
    # a rogue: it trusts the right server, and has a key that is not of this federation
    made = cluster.mfpo("federation", "init", str(tmp_path / "other"), "--agents", "1", "--port", "1")
    assert made.returncode == 0
    rogue = tmp_path / "other" / "agents" / "00"
    for name in ("ca.pem", "agent.toml"):
        shutil.copyfile(cluster.folder / "agents" / "00" / name, rogue / name)
    cluster.start("rogue", "agent", str(rogue))
    cluster.wait(lambda: "The server knows no agent with this key" in cluster.said("rogue"), 300, "no refusal")
    assert "a node whose key is not of this federation was refused" in cluster.said("server")
    cluster.running["rogue"].terminate()
    # a copy of a folder whose agent is there
    cluster.wait(lambda: len(cluster.rounds(run)) >= 1, 900, "no first round")
    ignored = shutil.ignore_patterns("*.sock", "*.log", "runs", "flwr")
    shutil.copytree(cluster.folder / "agents" / "01", tmp_path / "copy", ignore=ignored)
    cluster.start("copy", "agent", str(tmp_path / "copy"))
    cluster.wait(lambda: "a copy of it runs elsewhere: stop that one" in cluster.said("copy"), 300, "no refusal")
    assert "agent 1 asks to be let in while it is here already" in cluster.said("server")
    cluster.running["copy"].terminate()
    # the same folder twice on one machine
    twice = cluster.mfpo("agent", str(cluster.folder / "agents" / "01"))
    assert twice.returncode == 2 and "runs already on this machine" in twice.stderr
    # stop, look, go on
    stopped = cluster.mfpo("federation", "stop", str(cluster.folder))
    assert "stopped one; go on with" in stopped.stdout
    done = len(cluster.rounds(run))
    assert "one: stopped, round" in cluster.mfpo("federation", "status", str(cluster.folder)).stdout
    time.sleep(10)
    assert len(cluster.rounds(run)) <= done + 1 < 8
    cluster.start("again", "federation", "submit", str(cluster.folder), "--run", "one")
    assert cluster.running["again"].wait(900) == 0
    assert "over 4 fresh episodes" in cluster.said("again")
    same_as_alone(cluster, run, 8)


def test_an_insecure_federation_and_stock_flower(cluster: Any) -> None:
    cluster.up("--insecure")
    run = cluster.submit("one", 2)
    assert cluster.running["submit"].wait(900) == 0
    assert "without TLS and without keys" in cluster.said("server")
    same_as_alone(cluster, run, 2)
    assert "3 agents: online" in cluster.mfpo("federation", "status", str(cluster.folder)).stdout
    # a stock Flower user, with the same settings
    more = {name.replace("-", "_"): value for name, value in cluster.OPTIONS.items() if name != "seed"}
    more |= {"hidden": [more["hidden"]], "evaluation_episodes": 4}
    values = f"env='CartPole-v1' rounds=2 seed=5 more='{json.dumps(more)}'"
    flwr = str(Path(sys.executable).parent / "flwr")
    server = cluster.folder.resolve() / "server"
    done = subprocess.run(
        [flwr, "run", str(server / "app"), "mfpo", "--run-config", values],
        env={**os.environ, "FLWR_HOME": str(server / "flwr")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = cluster.folder / "runs" / "CartPole-v1-mfpo-1"
    cluster.wait(lambda: (run / "summary.json").exists(), 900, "no end of the run of a stock user")
    assert (run / "policy.safetensors").read_bytes() == (cluster.base / POLICY).read_bytes()
