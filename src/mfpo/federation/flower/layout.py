"""The folder of a federation, as `mfpo federation init` makes it.

DIR/federation.toml          how many agents, and where the server is
DIR/server/                  stays with the server: certificates, the agents' public keys, Flower's own files
DIR/agents/03/               to be copied to the machine of agent 3, and to no other
DIR/runs/NAME/               a run directory per training run

An insecure federation has no certificates and no keys, and stays on one machine.
"""

import contextlib
import datetime
import ipaddress
import secrets
import shutil
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from mfpo.errors import ConfigError, RunError
from mfpo.federation.flower import keys
from mfpo.runs import directory, files

FORMAT = 1
CONFIG, AGENT_CONFIG = "federation.toml", "agent.toml"
APP = """[project]
name = "mfpo-federation"
version = "1.0.0"
description = "Federated reinforcement learning with mfpo"
license = "Apache-2.0"
dependencies = []

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "mfpo"

[tool.flwr.app.components]
serverapp = "mfpo_app.server_app:app"
clientapp = "mfpo_app.client_app:app"

[tool.flwr.app.config]
run = ""
nodes = ""
env = "CartPole-v1"
algorithm = "mfpo"
agents = AGENTS
rounds = 0
seed = 0
more = "{}"
"""


class Federation(NamedTuple):
    """What federation.toml says, and where it is."""

    folder: Path
    agents: int
    host: str  # where agents find the server
    port: int
    listen: str  # the address the server listens at
    insecure: bool = False

    @property
    def address(self) -> str:
        """Where agents find the server, as host:port."""
        return f"{self.host}:{self.port}"

    @property
    def local_address(self) -> str:
        """Where processes of the server's machine find it; its certificate is for this name too."""
        host = "127.0.0.1" if self.listen in ("0.0.0.0", "::") else self.listen
        return f"{host}:{self.port}"


class Member(NamedTuple):
    """What agent.toml says, and where it is."""

    folder: Path
    number: int
    server: str
    report: bool
    environments: tuple[str, ...]
    insecure: bool = False


def create(
    folder: Path, agents: int, host: str, port: int, listen: str, insecure: bool = False, days: int = keys.DAYS
) -> Federation:
    """Make the folder, with new keys."""
    if agents < 1:
        raise ConfigError(f"--agents is {agents}, but a federation has at least 1.")
    if not 0 < port < 65536:
        raise ConfigError(f"--port is {port}, but ports are 1 to 65535.")
    if insecure:
        check_loopback("--insecure", host, listen)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} exists already; give a name that is free, so that no keys are lost.")
    made = Federation(folder, agents, host, port, listen, insecure)
    server = folder / "server"
    try:
        server.mkdir(parents=True, mode=0o700)
        if not insecure:
            keys.write_certificates(server, tuple(dict.fromkeys((host, "localhost", "127.0.0.1"))), days)
        keys.write_private(server / "superexec.secret", secrets.token_hex(32).encode())
        (server / "keys").mkdir()
        for number in range(agents):
            _make_member(made, number)
        _make_app(server / "app", agents)
        (server / "flwr").mkdir()
        document = {"format": FORMAT, **{name: x for name, x in made._asdict().items() if name != "folder"}}
        files.replace(folder / CONFIG, tomli_w.dumps(document).encode())
    except OSError as error:
        raise RunError(f"Cannot make {folder}: {files.reason(error)}.") from error
    return made


def _make_member(made: Federation, number: int) -> None:
    own, server = made.folder / "agents" / f"{number:02d}", made.folder / "server"
    own.mkdir(parents=True, mode=0o700)
    if not made.insecure:
        (server / "keys" / f"{number:02d}.pub").write_bytes(keys.write_agent_key(own))
        shutil.copyfile(server / "ca.pem", own / "ca.pem")
    document = {"format": FORMAT, "number": number, "server": made.address, "insecure": made.insecure}
    files.replace(own / AGENT_CONFIG, tomli_w.dumps({**document, "report": True, "environments": []}).encode())


def check_loopback(what: str, *hosts: str) -> None:
    """Refuse to go without TLS and keys anywhere but on this machine."""
    for host in hosts:
        try:
            loopback = host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise ConfigError(
                f"{what} goes without TLS and keys, which is for tries on one machine only, but {host} is not an "
                "address of this machine alone; use 127.0.0.1, or a federation with keys."
            )


def trust(authority: Path, side: Federation | Member) -> list[str]:
    """How Flower's processes are told whom to trust."""
    return ["--insecure"] if side.insecure else ["--root-certificates", str(authority)]


def claim(stack: contextlib.ExitStack, folder: Path, sentence: str) -> None:
    """Be the only process at a folder while the stack lasts, or raise this sentence."""
    try:
        stack.enter_context(directory.locked(folder))
    except RunError as error:
        raise RunError(sentence) from error


def _make_app(folder: Path, agents: int) -> None:
    """What Flower sends to every node: the client app, on its own so that it starts quickly."""
    package, here = folder / "mfpo_app", Path(__file__).parent
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(APP.replace("AGENTS", str(agents)))
    (package / "__init__.py").write_text('"""The Flower app of mfpo."""\n')
    (package / "server_app.py").write_text("from mfpo.federation.flower import server_app\n\napp = server_app.app\n")
    for name in ("client_app.py", "frames.py"):
        shutil.copyfile(here / name, package / name)


def read(folder: Path) -> Federation:
    """The federation in a folder, or a sentence on why it is none."""
    document = _read(folder / CONFIG, "the folder that `mfpo federation init` made")
    try:
        host, port, listen = str(document["host"]), int(document["port"]), str(document["listen"])
        found = Federation(folder, int(document["agents"]), host, port, listen, document.get("insecure") is True)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder / CONFIG} is incomplete ({error}); restore it.") from error
    if found.insecure:
        check_loopback(f"`insecure = true` in {folder / CONFIG}", found.host, found.listen)
    return found


def check_server(federation: Federation) -> None:
    """Refuse to serve without what only the server has."""
    server = federation.folder / "server"
    needed = ["superexec.secret", "app", "flwr"]
    needed += [] if federation.insecure else ["ca.pem", "server.pem", "server.key"]
    for name in needed:
        if not (server / name).exists():
            raise RunError(
                f"{server} has no {name}; `mfpo server` needs the whole folder that `mfpo federation init` made: "
                "restore it, or make a new federation."
            )
    for name in () if federation.insecure else ("ca.pem", "server.pem"):
        check_valid(server / name)


def read_member(folder: Path) -> Member:
    """The agent in a folder, or a sentence on why it is none."""
    document = _read(folder / AGENT_CONFIG, "an agent's folder, such as DIR/agents/03")
    insecure = document.get("insecure") is True
    if not insecure:
        _check_key(folder)
        check_valid(folder / "ca.pem")
    try:
        environments = tuple(map(str, document["environments"]))
        number, server, report = int(document["number"]), str(document["server"]), bool(document["report"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder / AGENT_CONFIG} is incomplete ({error}); copy it again from the server.") from error
    if insecure:
        check_loopback(f"`insecure = true` in {folder / AGENT_CONFIG}", server.rpartition(":")[0])
    return Member(folder, number, server, report, environments, insecure)


def _check_key(folder: Path) -> None:
    for name in ("key", "ca.pem"):
        if not (folder / name).is_file():
            raise RunError(f"{folder} has no {name}; copy the whole folder of the agent to this machine.")
    if (folder / "key").stat().st_mode & 0o077:
        raise RunError(f"{folder / 'key'} can be read by others; do: chmod 600 {folder / 'key'}")


def check_valid(certificate: Path) -> None:
    """Refuse a certificate that is missing, broken or expired."""
    try:
        end = keys.expires(certificate)
    except (OSError, ValueError) as error:
        raise RunError(f"The certificate {certificate} cannot be read ({error}); restore it.") from error
    if end < datetime.datetime.now(datetime.UTC):
        raise RunError(
            f"The certificate {certificate} expired on {end:%Y-%m-%d}; make a new federation with "
            "`mfpo federation init` and copy its folders."
        )


def _read(path: Path, wanted: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{path.parent} has no {path.name}{_what_it_is(path.parent)}; give {wanted}.") from error
    except OSError as error:
        raise RunError(f"Cannot read {path}: {files.reason(error)}.") from error
    except ValueError as error:
        raise RunError(f"{path} is not valid TOML ({error}); restore it.") from error
    if document.get("format") != FORMAT:
        raise RunError(f"{path} has format {document.get('format')}, but this mfpo reads {FORMAT}; use one version.")
    return document


def _what_it_is(folder: Path) -> str:
    """What a folder is that was given for another."""
    if (folder / CONFIG).exists():
        return ": it is the folder of the whole federation, with the server's keys, and stays on the server"
    if (folder / "server.key").exists() or (folder / "superexec.secret").exists():
        return ": it is the server's own part of a federation, and stays on the server"
    if (folder / AGENT_CONFIG).exists():
        return ": it is the folder of an agent, for `mfpo agent`"
    return ""
