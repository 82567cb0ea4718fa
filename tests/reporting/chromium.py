"""Headless Chromium, driven over a pipe with its own protocol: nothing to install but the browser."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-pipe"
).split()
# Chromium wants its pipe at descriptors 3 and 4.
LAUNCHER = (
    "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


def find() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Browser:
    """One tab."""

    def __init__(self, program: str, profile: Path, patience: float = 60) -> None:
        self._patience, self._buffer, self._number, self.problems = patience, b"", 0, []
        orders, self._write = os.pipe()
        self._read, answers = os.pipe()
        # below 10, one could be the other's 3 or 4
        import fcntl

        orders, answers = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (orders, answers))
        command = [
            sys.executable,
            "-c",
            LAUNCHER,
            str(orders),
            str(answers),
            program,
            *FLAGS,
            f"--user-data-dir={profile}",
        ]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([*command, "about:blank"], pass_fds=(orders, answers), **quiet)
        os.close(orders)
        os.close(answers)
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """A command of the DevTools protocol, and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        os.write(
            self._write, json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0"
        )
        deadline = time.monotonic() + self._patience
        while time.monotonic() < deadline:
            if not select.select([self._read], [], [], 1.0)[0]:
                continue
            self._buffer += os.read(self._read, 1 << 20)
            *whole, self._buffer = self._buffer.split(b"\0")
            answer = None
            for found in map(json.loads, whole):
                if found.get("id") == self._number:
                    answer = found
                elif found.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                    self.problems.append(found["params"])
            if answer is not None:
                assert "error" not in answer, answer
                return answer["result"]
        raise TimeoutError(method)

    def evaluate(self, expression):
        """The value of an expression of the page's language, in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression):
        """Until it is true; what it is then."""
        deadline = time.monotonic() + self._patience
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"{expression} did not come true; page: {self.text()}"
            time.sleep(0.1)
        return value

    def text(self) -> str:
        return self.evaluate("document.body.innerText")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._write, b'{"id": 0, "method": "Browser.close"}\0')
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
