"""Processes behind a command: started, watched, started again when they end, and ended with the command."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from mfpo.errors import MfpoError

Notice = Callable[[str], object]
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds; by default every message waits up to one more
}

GIVES_UP = "Giving up reconnection"  # Flower's processes do after a handshake that broke, and then wait for ever


def environment(flower_home: Path) -> dict[str, str]:
    """What Flower's processes are told: to find their like beside this Python, and to send nothing home."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    return {**os.environ, **QUIET, "PATH": path, "FLWR_HOME": str(flower_home), "PYTHONUNBUFFERED": "1"}


# Becomes the command it is given, after asking the system to end it (PR_SET_PDEATHSIG) when the process that keeps it
# is killed, so that no port stays taken. Python's own `preexec_fn` would fork this process, which JAX's threads forbid.
BOUND = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execvp(sys.argv[1], sys.argv[1:])"


class Child:
    """A process that is kept running. Its output goes to a file."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        bound = [sys.executable, "-I", "-c", BOUND] if sys.platform == "linux" else []
        self.name, self._command, self._env, self._log = name, [*bound, *command], dict(env), log
        self._process: subprocess.Popen[bytes] | None = None
        self._due, self._pause, self._began = 0.0, 1.0, 0.0
        self._start = 0  # where in the log its output begins
        self._passed_on = log.stat().st_size if log.exists() else 0
        self.advice: dict[str, str] = {}  # by what its output says before it ends: what to do
        self.hopeless = ""  # what its output says when it goes on running but will do nothing more

    @property
    def pid(self) -> int:
        """Its number, 0 if it is not running."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    def keep(self, notice: Notice) -> None:
        """Start it if it is due; say so if it has ended. Each time it ends soon, the pause is longer."""
        now = time.monotonic()
        if self.hopeless and self.pid and self.hopeless in self._output():
            notice(f"{self.name} has given up and starts again. Its last words in {self._log}: {self.last_words()}")
            self.end()
            return
        if self._process is not None and self._process.poll() is not None:
            self._pause = 1.0 if now - self._began > 60 else min(2 * self._pause, 30.0)
            said = self._output()
            why = next((advice for sign, advice in self.advice.items() if sign in said), "")
            notice(
                f"{self.name} has ended (code {self._process.returncode}); it starts again in {self._pause:.0f} s. "
                + (why or f"Its last words in {self._log}: {self.last_words()}")
            )
            self._process, self._due = None, now + self._pause
        if self._process is None and now >= self._due:
            with self._log.open("ab") as log:
                self._start = log.tell()
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._env,
                    start_new_session=True,  # so that what it starts can be ended with it
                )
            self._began = now
            notice(f"{self.name} runs (process {self._process.pid}).")

    def last_words(self) -> str:
        """Of the end of its output, the last line that sounds like a reason; else the last."""
        lines = [line.strip() for line in reversed(self._output().splitlines()) if line.strip()]
        telling = [line for line in lines if re.search("error|failed|could not|refused", line, re.IGNORECASE)]
        return (telling + lines + ["none"])[0][:300]

    def _output(self) -> str:
        """The end of what it wrote since it was started, without colours."""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(max(self._start, self._log.stat().st_size - 4000))
            return re.sub(r"\x1b\[\d*m", "", log.read().decode(errors="replace"))
        return ""

    def pass_on(self, notice: Notice) -> None:
        """Say what it said for people since the last time: lines that begin as ours do."""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(self._passed_on)
            news = log.read()
            news = news[: news.rfind(b"\n") + 1]
            self._passed_on += len(news)
            for line in news.decode(errors="replace").splitlines():
                if line.startswith("mfpo: "):
                    notice(re.sub(r"^mfpo: (\d\d:\d\d:\d\d )?", "", line))

    def end(self) -> None:
        """Ask it to end; after ten seconds, end it. What it started and left behind ends too."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process = None


@contextlib.contextmanager
def kept(children: Sequence[Child]) -> Iterator[None]:
    """End the children, the last first, however the block ends."""
    try:
        yield
    finally:
        for child in reversed(children):
            child.end()


def check_port_free(host: str, port: int) -> None:
    """A sentence if something else listens there."""
    with socket.socket() as test:
        test.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            test.bind((host, port))
        except OSError as error:
            raise MfpoError(
                f"Cannot listen at {host}:{port} ({(error.strerror or str(error)).lower()}); stop what runs there, or "
                "change `port` in federation.toml and `server` in every agent.toml."
            ) from error


def free_port() -> int:
    """A port of this machine that nothing uses."""
    with socket.socket() as test:
        test.bind(("127.0.0.1", 0))
        return int(test.getsockname()[1])


def answers(host: str, port: int) -> bool:
    """Whether something listens there."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False
