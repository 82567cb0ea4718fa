"""The folder of a federation: keys that only their owner reads, certificates that hold, mistakes told in a sentence."""

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
from mfpo.federation.flower import keys, layout, processes


@pytest.fixture
def federation(tmp_path: Path) -> layout.Federation:
    return layout.create(tmp_path / "cluster", 2, "127.0.0.1", 18443, "127.0.0.1")


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
    with pytest.raises(RunError, match="has no agent.toml; give an agent's folder"):
        layout.read_member(federation.folder)
    with pytest.raises(RunError, match="has no federation.toml; give the folder that `mfpo federation init` made"):
        layout.read(federation.folder / "agents" / "00")
    with pytest.raises(RunError, match="exists already"):
        layout.create(federation.folder, 2, "localhost", 1, "localhost")
    with pytest.raises(ConfigError, match="--agents is 0"):
        layout.create(tmp_path / "none", 0, "localhost", 1, "localhost")
    assert not (tmp_path / "none").exists()


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


def test_the_command_line_makes_and_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = str(tmp_path / "cluster")
    assert main(["federation", "init", cluster, "--agents", "2", "--host", "server.example"]) == 0
    assert "2 agents, whose server is at server.example:8443" in capsys.readouterr().out
    assert layout.read(Path(cluster)).listen == "0.0.0.0"
    for arguments, sentence in (
        (["federation", "start", cluster], "There is no `mfpo federation start`. Did you mean status?"),
        (["federation", "init", cluster, "--agents", "2"], "exists already"),
        (["agent", cluster], "has no agent.toml"),
        (["server", str(tmp_path)], "has no federation.toml"),
        (["federation", "submit", cluster, "--run", "none"], "was never submitted"),
        (["federation", "stop", cluster, "--run", "none"], "There is no run 'none'"),
        (["train", "CartPole-v1", "--engine", "flower", "--out", str(tmp_path / "x")], "mfpo federation submit"),
    ):
        assert main(arguments) == 2, arguments
        assert sentence in capsys.readouterr().err
