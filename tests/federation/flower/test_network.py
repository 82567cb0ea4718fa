"""Agents on hosts of their own, 50 ms away, and a link that is cut for a while.

The hosts are network namespaces where the system lets us make them; else all are this one, and the cut is in the proxy
that delays. Takes minutes.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from mfpo.federation.flower.processes import free_port

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("network")]
DELAY, CUT = 0.05, 60.0  # seconds

PROXY = """
import asyncio, sys

here, host, port, delay = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])

async def carry(reader, writer):
    loop, queue = asyncio.get_running_loop(), asyncio.Queue()

    async def deliver():
        while True:
            due, data = await queue.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                return writer.close()
            writer.write(data)
            await writer.drain()

    task = loop.create_task(deliver())
    try:
        while data := await reader.read(65536):
            queue.put_nowait((loop.time() + delay, data))
    except OSError:
        pass
    queue.put_nowait((loop.time() + delay, b""))
    await asyncio.gather(task, return_exceptions=True)

async def meet(reader, writer):
    try:
        there, to = await asyncio.open_connection(host, port)
    except OSError:
        return writer.close()
    await asyncio.gather(carry(reader, to), carry(there, writer), return_exceptions=True)

async def main():
    async with await asyncio.start_server(meet, "127.0.0.1", here) as server:
        await server.serve_forever()

asyncio.run(main())
"""


class Hosts:
    """A host for the server (0) and one for each of three agents (1 to 3), with a link from each to the server."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.proxies: dict[int, subprocess.Popen[bytes]] = {}
        self.names = self._make()

    def _make(self) -> list[int]:
        """The processes that hold a namespace each; none if the system has no namespaces for us."""
        try:
            hosts = [self._hold(["unshare", "-rn"])]
            hosts += [self._hold([*self._enter(hosts[0]), "unshare", "-n"]) for _ in range(3)]
            self._run(hosts[0], "ip link set lo up")
            for i, host in enumerate(hosts[1:], 1):
                self._run(hosts[0], f"ip link add v{i} type veth peer name e{i} netns {host}")
                self._run(hosts[0], f"ip addr add 10.77.{i}.1/24 dev v{i}")
                self._run(hosts[0], f"ip link set v{i} up")
                self._run(host, "ip link set lo up")
                self._run(host, f"ip addr add 10.77.{i}.2/24 dev e{i}")
                self._run(host, f"ip link set e{i} up")
            return hosts
        except (OSError, subprocess.SubprocessError):
            return []

    def _hold(self, inside: list[str]) -> int:
        holder = subprocess.Popen([*inside, "sh", "-c", "echo $$; exec sleep 7200"], stdout=subprocess.PIPE)
        self.processes.append(holder)
        assert holder.stdout is not None
        line = holder.stdout.readline()
        if not line:
            raise OSError("no namespaces")
        return int(line)

    @staticmethod
    def _enter(holder: int) -> list[str]:
        return ["nsenter", "-t", str(holder), "-U", "-n", "--preserve-credentials"]

    def _run(self, holder: int, command: str) -> None:
        subprocess.run([*self._enter(holder), *command.split()], check=True, capture_output=True, timeout=30)

    def inside(self, host: int) -> list[str]:
        """What to put before a command so that it runs on a host."""
        return self._enter(self.names[host]) if self.names else []

    def connect(self, agent: int, here: int, port: int) -> None:
        """On the agent's host, `here` is the server's port, DELAY away in each direction."""
        there = f"10.77.{agent}.1" if self.names else "127.0.0.1"
        command = [sys.executable, "-c", PROXY, str(here), there, str(port), str(DELAY)]
        self.proxies[agent] = subprocess.Popen([*self.inside(agent), *command])
        self.processes.append(self.proxies[agent])

    def cut(self, agent: int, seconds: float) -> None:
        """No link from an agent's host to the server for a while."""
        if self.names:
            self._run(self.names[0], f"ip link set v{agent} down")
            time.sleep(seconds)
            self._run(self.names[0], f"ip link set v{agent} up")
        else:
            self.proxies[agent].send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            self.proxies[agent].send_signal(signal.SIGCONT)

    def end(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
            if process.stdout:
                process.stdout.close()


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    hosts = Hosts()
    yield hosts
    hosts.end()


def test_a_cut_link_costs_what_it_lasts(cluster: Any, hosts: Hosts) -> None:
    port, rounds = free_port(), 8
    listen = "0.0.0.0" if hosts.names else "127.0.0.1"
    flags = ("--agents", "3", "--port", str(port), "--listen", listen)
    assert cluster.mfpo("federation", "init", str(cluster.folder), *flags).returncode == 0
    cluster.start("server", "server", str(cluster.folder), inside=hosts.inside(0))
    for agent in (1, 2, 3):
        here = port if hosts.names else free_port()
        hosts.connect(agent, here, port)
        toml = cluster.folder / "agents" / f"{agent - 1:02d}" / "agent.toml"
        toml.write_text(toml.read_text().replace(f":{port}", f":{here}"))
        cluster.start_agent(agent - 1, inside=hosts.inside(agent))
    cluster.wait(lambda: "the server is up" in cluster.said("server"), 600, "no server")
    run = cluster.submit("one", rounds, inside=hosts.inside(0))
    cluster.wait(lambda: len(cluster.rounds(run)) >= 2, 1200, "no second round")
    hosts.cut(2, CUT)
    cluster.wait(lambda: (run / "summary.json").exists(), 1500, "no end")
    assert cluster.running["submit"].wait(60) == 0
    alone, rows = cluster.alone(rounds), cluster.rounds(run)
    assert [row["round"] for row in rows] == list(range(1, rounds + 1))
    assert [row["answered"] for row in rows] == [3] * rounds
    assert (run / "policy.safetensors").read_bytes() == (alone.path / "policy.safetensors").read_bytes()
    assert "waiting on" not in Path(run / "federation.log").read_text()  # no round came to its deadline
    print("namespaces" if hosts.names else "loopback", [round(row["seconds"], 1) for row in rows])
