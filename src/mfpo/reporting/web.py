"""The page of `mfpo watch`, served by the standard library: one file, two answers in JSON, nothing else.

Only GET is answered. Names in a question are looked up in the listing of runs and never become a path. The page may
load nothing but itself: its script and style are allowed by their hashes. On loopback, the name by which a browser
asks must be one of this machine, so that no other site can make itself a name for it and read along.
"""

import base64
import hashlib
import importlib.resources
import ipaddress
import json
import re
import socket
import socketserver
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mfpo.errors import MfpoError
from mfpo.reporting.watch import Watcher

PORT = 8484
HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"


class PageServer(ThreadingHTTPServer):
    """Serves the page and the data of one watcher."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, watcher: Watcher, host: str = "127.0.0.1", port: int = PORT) -> None:
        if not 0 <= port < 65536:
            raise MfpoError(f"--port is {port}, but ports are 1 to 65535; 0 takes a free one.")
        self.watcher = watcher
        self.page = importlib.resources.files("mfpo.reporting").joinpath("page.html").read_bytes()
        self.policy = content_security_policy(self.page.decode())
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self.address_family = family
            super().__init__(address[:2], _Handler)  # type: ignore[arg-type]  # host and port of either family
        except OSError as error:
            raise MfpoError(
                f"Cannot listen at {host}:{port} ({(error.strerror or str(error)).lower()}). Is another `mfpo watch` "
                "running? Give another --port, 0 for a free one, and as --host an address of this machine."
            ) from error
        self.loopback = is_loopback(str(self.server_address[0]))

    def serve_until(self, stop: Callable[[], bool]) -> None:
        """Answer until told to stop."""
        self.timeout = 0.5  # seconds between two looks at `stop`
        while not stop():
            self.handle_request()

    def server_bind(self) -> None:
        """Without asking the network for this machine's name, which can take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """What to type into a browser on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.server_name, self.server_name)
        return f"http://[{host}]:{self.server_port}/" if ":" in host else f"http://{host}:{self.server_port}/"


def is_loopback(host: str) -> bool:
    """Whether a name or an address, with or without brackets, is this machine and nothing but it.

    >>> is_loopback("localhost"), is_loopback("[::1]"), is_loopback("127.0.0.1"), is_loopback("192.168.0.7")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def content_security_policy(page: str) -> str:
    """Allows what is written in the page itself, questions to this server, and nothing else."""
    script, style = (_hash(re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)) for tag in ("script", "style"))
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hash(parts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "mfpo", ""
    timeout = 60  # seconds that an idle connection is kept

    def do_GET(self) -> None:
        """The page, the list of runs, or a run."""
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # what follows is no question
        name = re.sub(r":\d*$", "", self.headers.get("Host", ""))
        if self.server.loopback and not is_loopback(name):
            self.send_error(403, f"This page is for this machine only; ask for it at {self.server.address}")
            return
        asked = urlsplit(self.path)
        if asked.path == "/":
            self._answer(self.server.page, HTML)
        elif asked.path == "/api/runs":
            self._answer_json(self.server.watcher.runs())
        elif asked.path == "/api/run":
            run = self.server.watcher.run(parse_qs(asked.query).get("name", [""])[0])
            if run is None:
                self.send_error(404, "There is no such run, or no more.")
            else:
                self._answer_json(run)
        else:
            self.send_error(404, "There is nothing here; the page is at /")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A sentence as plain text. The connection ends, for the rest of a bad question may follow."""
        self.close_connection = True
        if code == 501:  # no method but do_GET
            code, message = 405, "Only GET is answered: this page changes nothing."
        self._answer((message or "This cannot be answered.").encode(), TEXT, code)

    def _answer_json(self, value: dict[str, Any]) -> None:
        self._answer(json.dumps(value, allow_nan=False, separators=(",", ":")).encode(), JSON)

    def _answer(self, body: bytes, kind: str, code: int = 200) -> None:
        """Nothing but the headers if the browser has this very answer already."""
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if code == 200 and self.headers.get("If-None-Match") == tag:
            code, body = 304, b""
        self.send_response(code)
        if code == 405:
            self.send_header("Allow", "GET")
        if code in (200, 304):
            self.send_header("ETag", tag)
        if code != 304:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the page asks every few seconds."""
