"""What an operator does: submit a run, look at it, stop it."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mfpo.errors import MfpoError, RunError
from mfpo.federation.flower import processes
from mfpo.federation.flower.layout import Federation
from mfpo.federation.flower.server_app import ORDER, read_nodes, read_order, write_order
from mfpo.runs import directory, files, summary

NODES = "nodes.json"  # node -> agent, in the server's folder


class Refused(MfpoError):
    """Flower did not do what it was asked."""


def flwr(federation: Federation, *arguments: str) -> dict[str, Any]:
    """A command of Flower's, and what it answers."""
    server = (federation.folder / "server").resolve()
    command = ["flwr", *arguments, "--format", "json"]
    env = processes.environment(server / "flwr")
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=server)
    except OSError as error:
        raise MfpoError(
            f"Cannot run Flower's `flwr` in {server}: {files.reason(error)} ({error.filename}). If it is not installed "
            "beside this Python: pip install 'mfpo[flower]'"
        ) from error
    start = done.stdout.find("{")
    try:
        answer: dict[str, Any] = json.loads(done.stdout[start:]) if start >= 0 else {}
    except ValueError:
        answer = {}
    if not answer.get("success"):
        said = str(answer.get("error-message") or done.stderr or done.stdout)
        raise Refused(f"Flower refused `flwr {' '.join(arguments[:2])}`: {' '.join(said.split())[-400:]}")
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
    before, mine = read_order(run), {"state": "wanted", "submitted": time.time()}
    write_order(run, mine)  # before it can fail, or be stopped
    try:
        answer = flwr(federation, "run", "app", "mfpo", "--run-config", values)
    except BaseException:  # Ctrl-C, too
        if read_order(run) == mine:
            write_order(run, before)
        raise
    if read_order(run) == mine:
        write_order(run, mine | {"flower_run": str(answer["run-id"])})


def halt(federation: Federation, run: Path) -> None:
    """Stop a run; what it has done is kept, and submitting it again goes on."""
    order = read_order(run)
    if order["state"] == "damaged":
        raise RunError(
            f"The {ORDER} of {run} is damaged, and only there stood what Flower calls the run; stop the server, or "
            "wait until the run is over."
        )
    write_order(run, order | {"state": "stopped"})
    if order.get("flower_run"):
        try:
            flwr(federation, "stop", str(order["flower_run"]), "mfpo")
        except Refused:
            if _is_trained(run):  # else it has ended by itself
                write_order(run, order)
                raise


def runs_of(federation: Federation) -> Iterator[Path]:
    """The runs of a federation, the oldest first."""
    found = (federation.folder / "runs").glob(f"*/{ORDER}")
    return (path.parent for path in sorted(found, key=lambda path: path.stat().st_mtime))


def state_of(run: Path) -> str:
    """finished, failed, stopped, running, waiting or, if nobody can tell what is wanted of it, damaged."""
    state = _written_state(run)
    if state in ("wanted", "damaged"):
        if _is_trained(run):
            return "running"
        state = _written_state(run)  # once more: it may have ended while its lock was waited for
    return "waiting" if state == "wanted" else state


def _is_trained(run: Path) -> bool:
    """Whether somebody is at it now."""
    try:
        with directory.locked(run):
            return False
    except RunError:
        return True


def _written_state(run: Path) -> str:
    """What the files say: finished, or what was last wanted of it."""
    return "finished" if summary.read(run) is not None else str(read_order(run)["state"])


def agent_lines(federation: Federation) -> list[str]:
    """Which agents are there, for people."""
    check_up(federation)
    listed = {str(node["node-id"]): node for node in flwr(federation, "supernode", "list", "mfpo")["nodes"]}
    if federation.insecure:  # without keys, only a run's log tells which is which
        return [f"{sum(node.get('status') == 'online' for node in listed.values())} agents: online"]
    homes = {agent: str(node) for node, agent in read_nodes(federation.folder / "server" / NODES).items()}
    found = [listed.get(homes.get(number, ""), {}) for number in range(federation.agents)]
    return [f"agent {number}: {node.get('status', 'unknown to the server')}" for number, node in enumerate(found)]
