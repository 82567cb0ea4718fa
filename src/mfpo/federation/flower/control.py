"""What an operator does: start the two sides, submit a run, look at it, stop it.

A run that is wanted and whose process is gone is submitted again by the server, and goes on at the round it was in.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomli_w

from mfpo.errors import MfpoError, RunError
from mfpo.federation.flower import processes
from mfpo.federation.flower.agent import SOCKET, Agent, listen
from mfpo.federation.flower.layout import Federation, Member, check_valid
from mfpo.federation.flower.processes import Child
from mfpo.federation.flower.server_app import ORDER
from mfpo.runs import directory, files, metrics, summary

NODES = "nodes.json"
PATIENCE = 120.0  # seconds in which a submitted run must have begun

Notice = Callable[[str], object]


def serve(federation: Federation, notice: Notice, stop: Callable[[], bool] = lambda: False) -> None:
    """Run the server's processes until `stop`; take up runs that were left in the middle."""
    server = (federation.folder / "server").resolve()
    for name in ("ca.pem", "server.pem"):
        check_valid(server / name)
    processes.check_port_free(federation.listen, federation.port)
    _write_flower_config(federation)
    env = processes.environment(server / "flwr")
    address = _local_address(federation)
    link = Child("superlink", ["flower-superlink", *_link_options(federation, server)], env, server / "superlink.log")
    options = ["--runtime-api-address", address, "--root-certificates", str(server / "ca.pem")]
    options += ["--superexec-auth-secret-file", str(server / "superexec.secret")]
    executor = Child("superexec", ["flower-superexec", *options], env, server / "superexec.log")
    with processes.kept([link, executor]):
        _start(link, federation, notice, stop)
        register(federation, notice)
        notice(f"the server is up at {federation.address}; {federation.agents} agents may join.")
        while not stop():
            link.keep(notice)
            executor.keep(notice)
            _take_up(federation, notice)
            time.sleep(1.0)


def _link_options(federation: Federation, server: Path) -> list[str]:
    return [
        *("--host", federation.listen, "--port", str(federation.port), "--isolation", "process"),
        *("--ssl-ca-certfile", str(server / "ca.pem"), "--ssl-certfile", str(server / "server.pem")),
        *("--ssl-keyfile", str(server / "server.key"), "--enable-supernode-auth"),
        *("--database", str(server / "superlink.db"), "--disable-runtime-dependency-installation"),
        *("--superexec-auth-secret-file", str(server / "superexec.secret")),
    ]


def _local_address(federation: Federation) -> str:
    """Where processes of this machine find the server; its certificate is for this name too."""
    host = "127.0.0.1" if federation.listen in ("0.0.0.0", "::") else federation.listen
    return f"{host}:{federation.port}"


def _write_flower_config(federation: Federation) -> None:
    server = (federation.folder / "server").resolve()
    connection = {"address": _local_address(federation), "root-certificates": str(server / "ca.pem")}
    document = {"superlink": {"default": "mfpo", "mfpo": connection}}
    files.replace(server / "flwr" / "config.toml", tomli_w.dumps(document).encode())


def _start(link: Child, federation: Federation, notice: Notice, stop: Callable[[], bool]) -> None:
    host, _, port = _local_address(federation).rpartition(":")
    begun = time.monotonic()
    while not processes.answers(host, int(port)):
        link.keep(notice)
        if time.monotonic() - begun > 120 or stop():
            raise MfpoError(f"The superlink does not answer at {host}:{port}; it last said: {link.last_words()}")
        time.sleep(0.5)


def flwr(federation: Federation, *arguments: str) -> dict[str, Any]:
    """A command of Flower's, and what it answers."""
    server = (federation.folder / "server").resolve()
    command = ["flwr", *arguments, "--format", "json"]
    env = processes.environment(server / "flwr")
    done = subprocess.run(command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=server)
    start = done.stdout.find("{")
    try:
        answer: dict[str, Any] = json.loads(done.stdout[start:]) if start >= 0 else {}
    except ValueError:
        answer = {}
    if not answer.get("success"):
        said = str(answer.get("error-message") or done.stderr or done.stdout)
        raise MfpoError(f"Flower refused `flwr {' '.join(arguments[:2])}`: {' '.join(said.split())[-400:]}")
    return answer


def register(federation: Federation, notice: Notice) -> None:
    """Tell the superlink the keys of all agents, and note which node each of them is."""
    path = federation.folder / "server" / NODES
    nodes = json.loads(path.read_text()) if path.exists() else {}
    for number in range(federation.agents):
        if number not in nodes.values():
            key = f"keys/{number:02d}.pub"
            answer = flwr(federation, "supernode", "register", key, "mfpo", "--name", f"agent-{number:02d}")
            nodes[str(answer["node-id"])] = number
            files.replace(path, json.dumps(nodes, indent=2).encode())
            notice(f"agent {number} is registered.")


def submit(federation: Federation, run: Path) -> None:
    """Have a run trained by the server."""
    nodes = (federation.folder / "server" / NODES).resolve()
    values = f"run={json.dumps(str(run.resolve()))} nodes={json.dumps(str(nodes))}"
    answer = flwr(federation, "run", "app", "mfpo", "--run-config", values)
    note = {"state": "wanted", "flower_run": str(answer["run-id"]), "submitted": time.time()}
    files.replace(run / ORDER, json.dumps(note).encode())


def halt(federation: Federation, run: Path) -> None:
    """Stop a run; what it has done is kept, and submitting it again goes on."""
    order = read_order(run)
    files.replace(run / ORDER, json.dumps({**order, "state": "stopped"}).encode())
    if order.get("flower_run"):
        with contextlib.suppress(MfpoError):  # it has ended by itself
            flwr(federation, "stop", str(order["flower_run"]), "mfpo")


def read_order(run: Path) -> dict[str, Any]:
    """What was last wanted of a run."""
    try:
        order: dict[str, Any] = json.loads((run / ORDER).read_text())
        return order
    except (OSError, ValueError) as error:
        raise RunError(f"{run} was never submitted; do it with `mfpo federation submit`.") from error


def runs_of(federation: Federation) -> Iterator[Path]:
    """The runs of a federation, the oldest first."""
    found = (federation.folder / "runs").glob(f"*/{ORDER}")
    return (path.parent for path in sorted(found, key=lambda path: path.stat().st_mtime))


def state_of(run: Path) -> str:
    """finished, failed, stopped, running or waiting."""
    if summary.read(run) is not None:
        return "finished"
    order = read_order(run)
    if order["state"] != "wanted":
        return str(order["state"])
    try:
        with directory.locked(run):
            return "waiting"
    except RunError:
        return "running"


def status_line(run: Path) -> str:
    """How far a run is, for people."""
    settings, _ = directory.read_config(run)
    rows = metrics.read(run / directory.METRICS)
    line = f"{run.name}: {state_of(run)}, round {len(rows)} of {settings.rounds}"
    if rows:
        mean = rows[-1]["return_mean"]
        line += f", return {'–' if mean is None else format(mean, '.1f')}, {rows[-1]['answered']} agents answered"
    order = read_order(run)
    return f"{line}; {order['reason']}" if "reason" in order else line


def _take_up(federation: Federation, notice: Notice) -> None:
    """Submit again what is wanted and does not run."""
    for run in runs_of(federation):
        if state_of(run) == "waiting" and time.time() - read_order(run)["submitted"] > PATIENCE:
            notice(f"the run {run.name} is in the middle and nothing trains it; it is submitted again.")
            try:
                submit(federation, run)
            except MfpoError as error:
                notice(str(error))
                order = read_order(run)
                files.replace(run / ORDER, json.dumps({**order, "submitted": time.time()}).encode())


def attend(member: Member, notice: Notice, stop: Callable[[], bool] = lambda: False) -> None:
    """Run an agent's processes until `stop`: the warm agent, and the supernode that connects it to the server."""
    folder = member.folder.resolve()
    home = folder / "flwr"
    home.mkdir(exist_ok=True)
    env = processes.environment(home)
    worker = Child(
        f"agent {member.number}",
        [sys.executable, "-m", "mfpo", "agent", str(folder), "--worker"],
        env,
        folder / "agent.log",
    )
    options = ["--root-certificates", str(folder / "ca.pem"), "--superlink", member.server]
    options += ["--auth-supernode-private-key", str(folder / "key"), "--host", "127.0.0.1"]
    options += ["--port", str(processes.free_port()), "--node-config", f"socket={json.dumps(str(folder / SOCKET))}"]
    node = Child("supernode", ["flower-supernode", *options], env, folder / "supernode.log")
    with processes.kept([worker, node]):
        while not stop():
            worker.keep(notice)
            if (folder / SOCKET).exists():
                node.keep(notice)
            time.sleep(1.0)


def work(member: Member, notice: Notice, stop: Callable[[], bool] = lambda: False) -> None:
    """Be the warm agent."""
    listen(Agent(member.folder.resolve(), member.number, notice, member.report, member.environments), stop)
