"""An agent's side: the warm agent and Flower's supernode, kept running."""

import contextlib
import json
import socket
import ssl
import sys
import time
from collections.abc import Callable

from mfpo.federation.flower import layout, processes
from mfpo.federation.flower.agent import SOCKET, Agent, listen
from mfpo.federation.flower.layout import Member
from mfpo.federation.flower.processes import Child

Notice = Callable[[str], object]
TURNED_AWAY = "Failed to activate SuperNode"
ADVICE = (
    "The server knows no agent with this key, or has one already. If the server has just started, or this agent was "
    "killed and started again, it is let in within a minute; else this is a folder of another federation, or a copy of "
    "it runs elsewhere: stop that one."
)


def attend(member: Member, notice: Notice, stop: Callable[[], bool] = lambda: False) -> None:
    """Run an agent's processes until `stop`: the warm agent, and the supernode that connects it to the server."""
    folder = member.folder.resolve()
    home = folder / "flwr"
    home.mkdir(exist_ok=True)
    env = processes.environment(home)
    command = [sys.executable, "-m", "mfpo", "agent", str(folder), "--worker"]
    worker = Child(f"agent {member.number}", command, env, folder / "agent.log")
    node = Child("supernode", ["flower-supernode", *node_options(member)], env, folder / "supernode.log")
    node.advice[TURNED_AWAY], node.hopeless = ADVICE, processes.GIVES_UP
    door = Door(member)
    with contextlib.ExitStack() as stack:
        layout.claim(stack, home, f"The agent of {folder} runs already on this machine; one folder is one agent.")
        stack.enter_context(processes.kept([worker, node]))
        while not stop():
            worker.keep(notice)
            worker.pass_on(notice)
            if (folder / SOCKET).exists() and (node.pid or door.open(notice)):
                node.keep(notice)
            time.sleep(1.0)


def node_options(member: Member) -> list[str]:
    """What Flower's supernode is started with."""
    folder = member.folder.resolve()
    options = [*layout.trust(folder / "ca.pem", member), "--superlink", member.server, "--host", "127.0.0.1"]
    if not member.insecure:
        options += ["--auth-supernode-private-key", str(folder / "key")]
    options += ["--port", str(processes.free_port()), "--node-config", f"socket={json.dumps(str(folder / SOCKET))}"]
    return options


class Door:
    """Whether the server is there and is the one this agent trusts; if not, why, each reason once."""

    def __init__(self, member: Member) -> None:
        self._member, self._told = member, ""

    def open(self, notice: Notice) -> bool:
        """Knock."""
        reason = knock(self._member)
        if reason and reason != self._told:
            notice(reason)
        self._told = reason
        return not reason


def knock(member: Member) -> str:
    """Why the server cannot be reached or trusted; nothing if it can."""
    host, _, port = member.server.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5.0) as connection:
            if not member.insecure:
                context = ssl.create_default_context(cafile=str(member.folder / "ca.pem"))
                context.wrap_socket(connection, server_hostname=host.strip("[]")).close()
    except ssl.SSLCertVerificationError as error:
        return (
            f"The server at {member.server} shows a certificate that this agent does not trust "
            f"({error.verify_message}); if the server's is right, copy the agent's folder from it again."
        )
    except (OSError, ValueError) as error:
        return f"The server does not answer at {member.server} ({error}); it is tried again until it does."
    return ""


def work(member: Member, notice: Notice, stop: Callable[[], bool] = lambda: False) -> None:
    """Be the warm agent."""
    listen(Agent(member.folder.resolve(), member.number, notice, member.report, member.environments), stop)
