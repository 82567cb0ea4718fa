"""The folder of a federation: keys that only their owner reads, certificates that hold, mistakes told in a sentence."""

import contextlib
import datetime
import socket
import ssl
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

from mfpo.cli import main
from mfpo.errors import ConfigError, MfpoError, RunError
from mfpo.federation.flower import attending, keys, layout, processes, serving


@pytest.fixture
def federation(tmp_path: Path) -> layout.Federation:
    return layout.create(tmp_path / "cluster", 2, "127.0.0.1", processes.free_port(), "127.0.0.1")


def test_private_keys_are_private_and_agents_have_their_own(federation: layout.Federation) -> None:
    folder = federation.folder
    secret = [path for path in folder.rglob("*") if path.suffix in (".key", ".secret") or path.name == "key"]
    assert len(secret) == 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    assert stat.S_IMODE((folder / "server").stat().st_mode) == 0o700
    assert not list((folder / "agents").rglob("*.key"))  # neither the server's nor the authority's leaves the server
    for number in range(2):
        key = load_ssh_private_key((folder / "agents" / f"{number:02d}" / "key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        assert public == (folder / "server" / "keys" / f"{number:02d}.pub").read_bytes()
    assert len({path.read_bytes() for path in (folder / "server" / "keys").iterdir()}) == 2
    assert layout.read(folder) == federation
    assert layout.read_member(folder / "agents" / "01").number == 1


def shake_hands(server: Path, authority: Path, name: str) -> None:
    listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listening.load_cert_chain(server / "server.pem", server / "server.key")
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            listening.wrap_socket(theirs, server_side=True).close()
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ssl.create_default_context(cafile=str(authority)).wrap_socket(ours, server_hostname=name):
            pass
    finally:
        ours.close()
        thread.join()


def test_the_certificate_convinces_agents_of_this_federation_only(
    federation: layout.Federation, tmp_path: Path
) -> None:
    server, own = federation.folder / "server", federation.folder / "agents" / "00" / "ca.pem"
    for name in ("127.0.0.1", "localhost"):
        shake_hands(server, own, name)
    other = layout.create(tmp_path / "other", 1, "127.0.0.1", 18443, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, other.folder / "agents" / "00" / "ca.pem", "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, own, "elsewhere.example")


class LongAgo:
    """The module `datetime`, of another time."""

    UTC, timedelta = datetime.UTC, datetime.timedelta

    class datetime(datetime.datetime):  # noqa: N801
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "LongAgo.datetime":
            return cls(2020, 1, 1, tzinfo=tz)


def break_key(folder: Path) -> None:
    (folder / "key").chmod(0o644)


def remove_key(folder: Path) -> None:
    (folder / "key").unlink()


def expire(folder: Path) -> None:
    (folder / "ca.pem").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mfpo.federation.flower.keys.datetime", LongAgo)
        keys.write_certificates(folder, ("localhost",), days=1)


def no_certificate(folder: Path) -> None:
    (folder / "ca.pem").write_text("nothing")


def other_format(folder: Path) -> None:
    (folder / "agent.toml").write_text("format = 7")


MISTAKES: dict[str, Callable[[Path], None]] = {
    "can be read by others; do: chmod 600": break_key,
    "has no key; copy the whole folder": remove_key,
    "expired on": expire,
    "cannot be read": no_certificate,
    "has format 7, but this mfpo reads 1": other_format,
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_a_broken_folder_is_told(sentence: str, federation: layout.Federation) -> None:
    folder = federation.folder / "agents" / "00"
    MISTAKES[sentence](folder)
    with pytest.raises(RunError, match=sentence):
        layout.read_member(folder)


def test_the_wrong_folder_is_told(federation: layout.Federation, tmp_path: Path) -> None:
    folder = federation.folder
    for given, sentence in (
        (folder, "has no agent.toml: it is the folder of the whole federation, with the server's keys"),
        (folder / "server", "has no agent.toml: it is the server's own part of a federation, and stays on the server"),
        (tmp_path, "has no agent.toml; give an agent's folder"),
    ):
        with pytest.raises(RunError, match=sentence):
            layout.read_member(given)
    for given, sentence in (
        (folder / "agents" / "00", "has no federation.toml: it is the folder of an agent, for `mfpo agent`; give"),
        (folder / "server", "has no federation.toml: it is the server's own part of a federation"),
        (tmp_path, "has no federation.toml; give the folder that `mfpo federation init` made"),
    ):
        with pytest.raises(RunError, match=sentence):
            layout.read(given)
    with pytest.raises(RunError, match="exists already"):
        layout.create(folder, 2, "localhost", 1, "localhost")
    with pytest.raises(ConfigError, match="--agents is 0"):
        layout.create(tmp_path / "none", 0, "localhost", 1, "localhost")
    assert not (tmp_path / "none").exists()


def test_insecure_is_for_this_machine_only(tmp_path: Path) -> None:
    for host, listen in (("server.example", "127.0.0.1"), ("127.0.0.1", "0.0.0.0"), ("192.168.1.2", "192.168.1.2")):
        with pytest.raises(
            ConfigError, match="--insecure goes without TLS and keys, which is for tries on one machine"
        ):
            layout.create(tmp_path / "open", 1, host, 18443, listen, insecure=True)
    assert not (tmp_path / "open").exists()
    made = layout.create(tmp_path / "open", 1, "localhost", 18443, "127.0.0.1", insecure=True)
    assert layout.read(made.folder) == made and not list(made.folder.rglob("*.pem"))
    member = layout.read_member(made.folder / "agents" / "00")
    assert member.insecure and "--insecure" in attending.node_options(member)
    assert "--insecure" in serving.link_options(made)
    for path, read in (
        (made.folder / "federation.toml", lambda: layout.read(made.folder)),
        (made.folder / "agents" / "00" / "agent.toml", lambda: layout.read_member(made.folder / "agents" / "00")),
    ):  # somebody moves it to a network by hand
        path.write_text(path.read_text().replace("localhost", "192.168.1.2"))
        with pytest.raises(ConfigError, match="but 192.168.1.2 is not an address of this machine alone"):
            read()


def test_a_server_without_what_it_needs_is_told(
    federation: layout.Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    server, cluster = federation.folder / "server", str(federation.folder)

    def sentence() -> str:
        assert main(["server", cluster]) == 2
        return capsys.readouterr().err

    with socket.socket() as other:
        other.bind(("127.0.0.1", federation.port))
        other.listen()
        assert f"Cannot listen at 127.0.0.1:{federation.port} (address already in use); stop what runs" in sentence()
    with contextlib.ExitStack() as stack:
        layout.claim(stack, server / "flwr", "first")
        assert "runs already; stop that one first" in sentence()
        member = layout.read_member(federation.folder / "agents" / "00")
        (member.folder / "flwr").mkdir()
        layout.claim(stack, member.folder / "flwr", "first")
        assert main(["agent", str(member.folder)]) == 2
        assert "runs already on this machine; one folder is one agent" in capsys.readouterr().err
    for name in ("ca.key", "ca.pem", "server.key", "server.pem"):
        (server / name).unlink()
    assert "has no ca.pem; `mfpo server` needs the whole folder" in sentence()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mfpo.federation.flower.keys.datetime", LongAgo)
        keys.write_certificates(server, ("127.0.0.1",), days=1)
    assert "server/ca.pem expired on 2020-01-02; make a new federation" in sentence()


def listen_once(certificates: Path) -> int:
    """A port behind which somebody shows a certificate, once."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as connection, contextlib.suppress(OSError):
            context.wrap_socket(connection, server_side=True).close()

    threading.Thread(target=serve).start()
    return int(listener.getsockname()[1])


def test_an_agent_says_why_it_does_not_trust_a_server(federation: layout.Federation, tmp_path: Path) -> None:
    server, member = federation.folder / "server", layout.read_member(federation.folder / "agents" / "00")

    def knock(certificates: Path) -> str:
        return attending.knock(member._replace(server=f"127.0.0.1:{listen_once(certificates)}"))

    assert knock(server) == ""
    other = layout.create(tmp_path / "other", 1, "127.0.0.1", 18443, "127.0.0.1").folder / "server"
    assert "shows a certificate that this agent does not trust (unable to get local issuer" in knock(other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mfpo.federation.flower.keys.datetime", LongAgo)
        (tmp_path / "old").mkdir()
        keys.write_certificates(tmp_path / "old", ("127.0.0.1",), days=1)
    (member.folder / "ca.pem").write_bytes((tmp_path / "old" / "ca.pem").read_bytes())
    assert "does not trust (certificate has expired)" in knock(tmp_path / "old")
    said: list[str] = []
    door = attending.Door(member._replace(server=f"127.0.0.1:{processes.free_port()}"))
    assert not door.open(said.append) and not door.open(said.append)
    assert len(said) == 1 and "does not answer at 127.0.0.1:" in said[0] and "it is tried again" in said[0]


def test_the_server_names_whom_flower_turned_away(federation: layout.Federation) -> None:
    log = federation.folder / "server" / "superlink.log"
    log.write_text("ERROR No SuperNode found with the given public key\n")  # of before
    (federation.folder / "server" / "nodes.json").write_text('{"77": 1}')
    doorman, said = serving.Doorman(federation, log), list[str]()
    doorman.look(said.append)
    assert said == []
    for _ in range(2):
        with log.open("a") as file:
            file.write("exception: SuperNode with node ID 77 could not be activated.\n")
            file.write("exception: No SuperNode found with the given public key\nhalf a li")
        doorman.look(said.append)
    assert len(said) == 2 and "a node whose key is not of this federation was refused" in said[0]
    assert said[1].startswith("agent 1 asks to be let in while it is here already")


def test_a_taken_port_is_told() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert processes.answers("127.0.0.1", port)
        with pytest.raises(MfpoError, match=f"Cannot listen at 127.0.0.1:{port} "):
            processes.check_port_free("127.0.0.1", port)
    assert not processes.answers("127.0.0.1", port)


def test_a_child_is_started_again_and_ended(tmp_path: Path) -> None:
    said: list[str] = []
    child = processes.Child(
        "it", [sys.executable, "-c", "print('Failed: no key'); print('bye'); raise SystemExit(3)"], {}, tmp_path / "log"
    )
    deadline = time.monotonic() + 60
    while sum("runs (process" in sentence for sentence in said) < 2 and time.monotonic() < deadline:
        child.keep(said.append)
        time.sleep(0.05)
    child.end()
    assert child.pid == 0
    assert (
        f"it has ended (code 3); it starts again in 2 s. Its last words in {tmp_path / 'log'}: Failed: no key" in said
    )


def test_a_child_passes_on_what_is_for_people_and_its_end_is_explained(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "log").write_text("mfpo: 10:00:00 of an earlier day\n")
    program = "print('mfpo: 10:00:01 the server is there.'); print('noise'); raise SystemExit('Turned away')"
    child = processes.Child("it", [sys.executable, "-c", program], {}, tmp_path / "log")
    child.advice["Turned away"] = "Do this."
    child.keep(said.append)
    deadline = time.monotonic() + 60
    while child.pid and time.monotonic() < deadline:
        time.sleep(0.05)
    child.pass_on(said.append)
    child.keep(said.append)
    assert said[1:] == ["the server is there.", "it has ended (code 1); it starts again in 2 s. Do this."]


def test_what_a_child_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    program = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    child = processes.Child("it", [sys.executable, "-c", program], {"PATH": "/usr/bin:/bin"}, tmp_path / "log")
    child.keep(lambda sentence: None)
    deadline = time.monotonic() + 60
    while not (tmp_path / "log").read_text().strip() and time.monotonic() < deadline:
        time.sleep(0.05)
    below = Path(f"/proc/{int((tmp_path / 'log').read_text())}/cmdline")
    assert below.read_bytes().startswith(b"sleep")
    child.end()
    while below.exists() and below.read_bytes() and time.monotonic() < deadline:  # a zombie has no command line
        time.sleep(0.05)
    assert not below.exists() or below.read_bytes() == b""


def test_a_child_that_has_given_up_is_started_again(tmp_path: Path) -> None:
    said: list[str] = []
    program = "import time; print('Giving up reconnection after 2 tries', flush=True); time.sleep(600)"
    child = processes.Child("it", [sys.executable, "-c", program], {}, tmp_path / "log")
    child.hopeless = processes.GIVES_UP
    deadline = time.monotonic() + 60
    while sum("runs (process" in sentence for sentence in said) < 2 and time.monotonic() < deadline:
        child.keep(said.append)
        time.sleep(0.05)
    child.end()
    words = "Giving up reconnection after 2 tries"
    assert said[1] == f"it has given up and starts again. Its last words in {tmp_path / 'log'}: {words}"


def test_the_command_line_makes_and_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = str(tmp_path / "cluster")
    assert main(["federation", "init", cluster, "--agents", "2", "--host", "server.example"]) == 0
    assert "2 agents, whose server is at server.example:8443" in capsys.readouterr().out
    assert layout.read(Path(cluster)).listen == "0.0.0.0"
    for arguments, sentence in (
        (["federation", "start", cluster], "There is no `mfpo federation start`. Did you mean status?"),
        (["federation", "init", cluster, "--agents", "2"], "exists already"),
        (["agent", cluster], "has no agent.toml: it is the folder of the whole federation"),
        (["federation", "init", "x", "--agents", "2", "--host", "a.b", "--insecure"], "--insecure goes without TLS"),
        (["federation", "submit", cluster, "CartPole-v1"], "start it on this machine with: mfpo server"),
        (["server", str(tmp_path)], "has no federation.toml"),
        (["federation", "submit", cluster, "--run", "none"], "was never submitted"),
        (["federation", "stop", cluster, "--run", "none"], "There is no run 'none'"),
        (["train", "CartPole-v1", "--engine", "flower", "--out", str(tmp_path / "x")], "mfpo federation submit"),
    ):
        assert main(arguments) == 2, arguments
        assert sentence in capsys.readouterr().err
