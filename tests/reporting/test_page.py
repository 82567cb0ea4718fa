"""The page in a real browser: headless Chromium, driven over a pipe in its own protocol. Nothing else is needed."""

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mfpo.reporting.watch import Watcher
from mfpo.reporting.web import PageServer

pytestmark = pytest.mark.slow  # a browser takes a minute to start where cores are busy

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-pipe"
).split()
# Chromium wants its pipe at descriptors 3 and 4.
LAUNCHER = (
    "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _away(end):
    """The same descriptor with a number that is neither 3 nor 4."""
    try:
        return fcntl.fcntl(end, fcntl.F_DUPFD, 10)
    finally:
        os.close(end)


class Browser:
    """One tab."""

    def __init__(self, program: str, profile: Path, patience: float = 60) -> None:
        self._patience, self._buffer, self._number, self.problems = patience, b"", 0, []
        orders, self._write = os.pipe()
        self._read, answers = os.pipe()
        orders, answers = (_away(end) for end in (orders, answers))
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
        try:
            self._open_tab()
        except BaseException:
            self.close()
            raise

    def _open_tab(self) -> None:
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


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find()
    if program is None:
        pytest.skip(f"no Chromium here: none of {', '.join(NAMES)} is on the path")
    opened = Browser(program, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def address(tmp_path):
    """The address of a server that watches the test's own directory."""
    with PageServer(Watcher(tmp_path), port=0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.address
        server.shutdown()
        thread.join()


def of(selector):
    return f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"


def add_row(run, **changes):
    """One more round, after the last."""
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(last | {"round": last["round"] + 1} | changes) + "\n")


def test_the_page_shows_a_run_and_follows_it(browser, address, make_run):
    run = make_run("first", rounds=12, finished=False, agents=3)
    make_run("second", rounds=5)
    note = "round 12: <img src=x onerror=alert(1)> is not finite."
    agents = [{"number": n, "last_seen": time.time(), "round": 12, "refused": 0, "note": ""} for n in range(2)]
    agents.append({"number": 2, "last_seen": None, "round": 0, "refused": 12, "note": note})
    (run / "agents.json").write_text(json.dumps({"agents": agents}))
    browser.problems.clear()
    browser.call("Page.navigate", url=address)
    browser.wait_for("document.querySelectorAll('a.run').length === 2")
    assert "500.0\nfinal score" in browser.text()
    browser.evaluate("document.querySelector('a[href=\"#run=first\"]').click()")
    browser.wait_for("document.querySelector('#last-return') !== null")
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert browser.evaluate(of("#last-return")).startswith(f"{last['return_mean']:.1f} ±")
    assert browser.evaluate(of("#round")) == "12 / 12"
    shown = [browser.evaluate(of(f"#agents tbody tr:nth-child({n})")) for n in (1, 2, 3)]
    assert "agent 2" in shown[0] and "refused" in shown[0] and note in shown[0]  # trouble first, and as text
    assert "agent 0" in shown[1] and "agent 1" in shown[2] and "answer" in shown[1]
    assert browser.evaluate("document.querySelectorAll('figure path.curve').length") == 2  # return and drift

    add_row(run, return_mean=1234.5, answered=2, refused=1, rejected=0)
    browser.wait_for(f"({of('#last-return')}).startsWith('1,234.5')")
    assert browser.evaluate(of("#unusable")) == "1"
    assert "0 rejected, 1 refused" in browser.text()
    assert browser.problems == []  # no error of the script, nothing that the policy had to stop


def test_a_single_run_needs_no_list_and_may_vanish(browser, tmp_path, make_run):
    run = make_run("alone", rounds=3)
    with PageServer(Watcher(run), port=0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            browser.call("Page.navigate", url=server.address)
            browser.wait_for("document.querySelector('#final-score') !== null")
            assert browser.evaluate(of("#crumb")) == ""
            shutil.rmtree(run)
            browser.wait_for("document.body.innerText.includes('There is no such run, or no more.')")
        finally:
            server.shutdown()
            thread.join()
    browser.wait_for("document.body.innerText.includes('is `mfpo watch` still running?')")


def test_the_page_fits_a_phone(browser, address, make_run):
    make_run("a-name-that-is-much-too-long-for-the-screen-of-a-phone-" * 3, rounds=400)
    browser.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=1, mobile=True)
    try:
        browser.call("Page.navigate", url=address)
        browser.wait_for("document.querySelector('a.run') !== null")
        assert browser.evaluate("document.documentElement.scrollWidth") <= 360
        browser.evaluate("document.querySelector('a.run').click()")
        browser.wait_for("document.querySelector('figure svg') !== null")
        assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")


def test_rounds_without_a_return_are_drawn_as_unknown(browser, address, make_run):
    run = make_run("run", rounds=3, finished=False)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    unknown = {"return_mean": None, "return_std": None}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row | unknown) + "\n" for row in rows))
    browser.problems.clear()
    browser.call("Page.navigate", url=f"{address}#run=run")
    browser.wait_for("document.querySelector('figure svg') !== null")
    assert browser.evaluate(of("#last-return")) == "–"
    add_row(run, return_mean=7.0, return_std=1.0)
    browser.wait_for(f"({of('#last-return')}).startsWith('7.0 ± 1.0')")
    assert browser.problems == []
    assert "NaN" not in browser.evaluate("document.body.innerHTML")
