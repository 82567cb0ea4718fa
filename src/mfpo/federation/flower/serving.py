"""The server's side: Flower's processes, kept running, and the runs, taken up again where they were left.

A run that is wanted and whose process is gone is submitted again, and goes on at the round it was in.
"""

import contextlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import tomli_w

from mfpo.errors import MfpoError, RunError
from mfpo.federation.flower import control, layout, processes
from mfpo.federation.flower.layout import Federation
from mfpo.federation.flower.processes import Child
from mfpo.federation.flower.server_app import FEDERATION, ORDER, read_order, write_order
from mfpo.runs import files

LINGERS = 20.0  # seconds that a superlink may take to end
PATIENCE = 120.0  # seconds in which a submitted run must have begun

Notice = Callable[[str], object]


def serve(federation: Federation, notice: Notice, stop: Callable[[], bool] = lambda: False) -> None:
    """Run the server's processes until `stop`; take up runs that were left in the middle."""
    server = (federation.folder / "server").resolve()
    layout.check_server(federation)
    with contextlib.ExitStack() as stack:
        layout.claim(stack, server / "flwr", f"The server of {federation.folder} runs already; stop that one first.")
        _await_port(federation, server)
        _write_flower_config(federation)
        env = processes.environment(server / "flwr") | {FEDERATION: str(federation.folder.resolve())}
        link = Child("superlink", ["flower-superlink", *link_options(federation)], env, server / "superlink.log")
        options = ["--runtime-api-address", federation.local_address, *layout.trust(server / "ca.pem", federation)]
        options += ["--superexec-auth-secret-file", str(server / "superexec.secret")]
        executor = Child("superexec", ["flower-superexec", *options], env, server / "superexec.log")
        executor.hopeless = processes.GIVES_UP
        stack.enter_context(processes.kept([link, executor]))
        _start(link, federation, notice, stop)
        register(federation, notice)
        safety = "without TLS and without keys, on this machine only" if federation.insecure else "with TLS and keys"
        notice(f"the server is up at {federation.address}, {safety}; {federation.agents} agents may join.")
        doorman, told = Doorman(federation, server / "superlink.log"), set[str]()
        while not stop():
            link.keep(notice)
            executor.keep(notice)
            doorman.look(notice)
            _take_up(federation, notice, told)
            time.sleep(1.0)


def _await_port(federation: Federation, server: Path) -> None:
    """A superlink whose server was killed ends by itself, within seconds; what else holds the port is told."""
    until = time.monotonic() + (LINGERS if (server / "superlink.log").exists() else 0.0)
    while True:
        try:
            return processes.check_port_free(federation.listen, federation.port)
        except MfpoError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def link_options(federation: Federation) -> list[str]:
    """What Flower's superlink is started with."""
    server = (federation.folder / "server").resolve()
    secured = [
        *("--ssl-ca-certfile", str(server / "ca.pem"), "--ssl-certfile", str(server / "server.pem")),
        *("--ssl-keyfile", str(server / "server.key"), "--enable-supernode-auth"),
    ]
    return [
        *("--host", federation.listen, "--port", str(federation.port), "--isolation", "process"),
        *(["--insecure"] if federation.insecure else secured),
        *("--database", str(server / "superlink.db"), "--disable-runtime-dependency-installation"),
        *("--superexec-auth-secret-file", str(server / "superexec.secret")),
    ]


def _write_flower_config(federation: Federation) -> None:
    server = (federation.folder / "server").resolve()
    trusted = {"insecure": True} if federation.insecure else {"root-certificates": str(server / "ca.pem")}
    document = {"superlink": {"default": "mfpo", "mfpo": {"address": federation.local_address, **trusted}}}
    files.replace(server / "flwr" / "config.toml", tomli_w.dumps(document).encode())


def _start(link: Child, federation: Federation, notice: Notice, stop: Callable[[], bool]) -> None:
    host, _, port = federation.local_address.rpartition(":")
    begun = time.monotonic()
    while not processes.answers(host, int(port)):
        link.keep(notice)
        if time.monotonic() - begun > 120 or stop():
            raise MfpoError(f"The superlink does not answer at {host}:{port}; it last said: {link.last_words()}")
        time.sleep(0.5)


def register(federation: Federation, notice: Notice) -> None:
    """Tell the superlink the keys of all agents, and note which node each of them is."""
    if federation.insecure:
        return
    path = federation.folder / "server" / control.NODES
    nodes = json.loads(path.read_text()) if path.exists() else {}
    for number in range(federation.agents):
        if number not in nodes.values():
            key = f"keys/{number:02d}.pub"
            answer = control.flwr(federation, "supernode", "register", key, "mfpo", "--name", f"agent-{number:02d}")
            nodes[str(answer["node-id"])] = number
            files.replace(path, json.dumps(nodes, indent=2).encode())
            notice(f"agent {number} is registered.")


class Doorman:
    """Says in our words whom Flower turned away, as the superlink's log tells."""

    def __init__(self, federation: Federation, log: Path) -> None:
        self._nodes, self._log = federation.folder / "server" / control.NODES, log
        self._read = log.stat().st_size if log.exists() else 0
        self._told: set[str] = set()

    def look(self, notice: Notice) -> None:
        """Each of them is named once."""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(self._read)
            news = log.read()
            news = news[: news.rfind(b"\n") + 1]
            self._read += len(news)
            for sentence in self.sentences(news.decode(errors="replace")):
                if sentence not in self._told:
                    self._told.add(sentence)
                    notice(sentence)

    def sentences(self, text: str) -> list[str]:
        """What a piece of the log says about nodes that were turned away."""
        found = []
        if "No SuperNode found with the given public key" in text or "Invalid SuperNode authentication" in text:
            found.append(
                "a node whose key is not of this federation was refused; if it is one of your machines, copy its "
                "agent's folder there again."
            )
        for node in re.findall(r"SuperNode with node ID (\d+) could not be activated", text):
            nodes = json.loads(self._nodes.read_text())
            found.append(
                f"agent {nodes.get(node, 'unknown')} asks to be let in while it is here already. If it was killed and "
                "started again, it is let in within a minute; else its folder was copied to two machines: delete one."
            )
        return found


def _take_up(federation: Federation, notice: Notice, told: set[str]) -> None:
    """Submit again what is wanted and does not run. Of a run that cannot be read this is told once."""
    for run in control.runs_of(federation):
        try:
            order, state = read_order(run), control.state_of(run)
            if state == "damaged":
                again = f"mfpo federation submit {federation.folder} --run {run.name}"
                raise RunError(f"its {ORDER} is damaged; go on with: {again}")
            left = state == "waiting" and time.time() - order.get("submitted", 0.0) > PATIENCE
        except RunError as error:
            sentence = f"the run {run.name} is left alone: {error}"
            if sentence not in told:
                told.add(sentence)
                notice(sentence)
            continue
        if left:
            notice(f"the run {run.name} is in the middle and nothing trains it; it is submitted again.")
            try:
                control.submit(federation, run)
            except MfpoError as error:
                notice(str(error))
                if read_order(run) == order:
                    write_order(run, order | {"submitted": time.time()})
