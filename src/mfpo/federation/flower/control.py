"""What an operator does: submit a run, look at it, stop it."""

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mfpo.errors import MfpoError, RunError
from mfpo.federation.flower import processes
from mfpo.federation.flower.layout import Federation
from mfpo.federation.flower.server_app import ORDER, write_order
from mfpo.runs import directory, metrics, summary

NODES = "nodes.json"  # node -> agent, in the server's folder


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


def check_up(federation: Federation) -> None:
    """A sentence if the server does not run."""
    host, _, port = federation.local_address.rpartition(":")
    if not processes.answers(host, int(port)):
        raise MfpoError(
            f"The server does not answer at {federation.local_address}; start it on this machine with: "
            f"mfpo server {federation.folder}"
        )


def submit(federation: Federation, run: Path) -> None:
    """Have a run trained by the server."""
    nodes = (federation.folder / "server" / NODES).resolve()
    values = f"run={json.dumps(str(run.resolve()))} nodes={json.dumps(str(nodes))}"
    answer = flwr(federation, "run", "app", "mfpo", "--run-config", values)
    write_order(run, "wanted", flower_run=str(answer["run-id"]), submitted=time.time())


def halt(federation: Federation, run: Path) -> None:
    """Stop a run; what it has done is kept, and submitting it again goes on."""
    order = read_order(run)
    write_order(run, **{**order, "state": "stopped"})
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
