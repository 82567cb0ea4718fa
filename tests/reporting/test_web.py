import http.client
import json
import re
import socket
import threading
import urllib.parse

import pytest

from mfpo.errors import MfpoError
from mfpo.reporting.watch import Watcher
from mfpo.reporting.web import PageServer, content_security_policy


@pytest.fixture
def server(tmp_path):
    (tmp_path / "secret.txt").write_text("not for you")
    with PageServer(Watcher(tmp_path), port=0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def ask(server):
    """(status, headers, body) of a question."""

    def ask(path, method="GET", body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    return ask


def test_the_page_is_served_and_may_load_nothing_from_elsewhere(ask):
    status, headers, body = ask("/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert body.startswith("<!DOCTYPE html>") and "prefers-color-scheme: dark" in body
    assert re.findall(r"(?:src|href)=\"(?!data:|#)", body) == []
    assert "https:" not in body and "@import" not in body and "url(" not in body
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and "connect-src 'self'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"


def test_the_policy_names_the_very_script():
    # printf 'let a = 1;' | openssl dgst -sha256 -binary | base64
    policy = content_security_policy("<style></style><script>let a = 1;</script>")
    assert "script-src 'sha256-xY6QKfH9PRsQnLz56nj6MBwiK5oHg+im1Jkpdp1x/Ck='" in policy


def test_runs_are_answered_as_json(ask, make_run):
    make_run("one", rounds=3)
    status, headers, body = ask("/api/runs")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert [run["name"] for run in json.loads(body)["runs"]] == ["one"]
    status, _, body = ask("/api/run?name=one")
    assert status == 200 and json.loads(body)["curve"]["round"] == [1, 2, 3]


def test_an_answer_that_is_known_is_not_sent_again(ask, make_run):
    run = make_run("one", rounds=3)
    _, headers, _ = ask("/api/run?name=one")
    status, again, body = ask("/api/run?name=one", If_None_Match=headers["ETag"])
    assert (status, body, again["ETag"]) == (304, "", headers["ETag"])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "return_mean": 9.0}\n')
    status, _, body = ask("/api/run?name=one", If_None_Match=headers["ETag"])
    assert status == 200 and json.loads(body)["round"] == 4


@pytest.mark.parametrize(
    "path",
    [
        "/secret.txt",
        "/../secret.txt",
        "/one/metrics.jsonl",
        "/page.html",
        "//etc/passwd",
        "/api/run",
        "/api/run?name=",
        "/api/run?name=.",
        "/api/run?name=..",
        "/api/run?name=../" + "{folder}/one",
        "/api/run?name=one/../one",
        "/api/run?name=one/checkpoints",
        "/api/run?name=" + urllib.parse.quote("{folder}/one", safe=""),
        "/api/run?name=one%00",
        "/api/run?name=/etc",
    ],
)
def test_nothing_but_known_names_is_answered(ask, make_run, tmp_path, path):
    make_run("one", rounds=1)
    status, _, body = ask(path.format(folder=tmp_path.name))
    assert status == 404
    assert body in ("There is no such run, or no more.", "There is nothing here; the page is at /")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8484", "127.0.0.1.evil.example", "192.168.1.2", "", "a:b:1"]
)
def test_another_name_for_this_machine_is_refused(ask, host):
    for path in ("/", "/api/runs", "/api/run?name=one"):
        status, _, body = ask(path, Host=host)
        assert status == 403 and body.startswith("This page is for this machine only; ask for it at http://127.0.0.1:")


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1", "[::1]:8484", "LOCALHOST:1"])
def test_own_names_are_not(ask, host):
    assert ask("/api/runs", Host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "BREW"])
def test_only_get_is_answered(ask, method):
    status, headers, _ = ask("/api/runs", method, b"GET /api/runs HTTP/1.1\r\n\r\n" if method == "POST" else None)
    assert (status, headers["Allow"], headers["Connection"]) == (405, "GET", "close")
    assert "Content-Security-Policy" in headers


def test_what_follows_a_get_is_not_taken_for_a_question(server):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as peer:
        hidden = b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n"
        peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(hidden) + hidden)
        answer = b"".join(iter(lambda: peer.recv(65536), b""))
    assert answer.count(b"HTTP/1.1 ") == 1


def test_nonsense_gets_a_sentence_and_the_server_goes_on(server, ask):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as peer:
        peer.sendall(b"\x16\x03\x01 what is this\r\n\r\n")
        assert b"Bad request version" in b"".join(iter(lambda: peer.recv(65536), b""))
    assert ask("/api/runs")[0] == 200


def test_several_may_look_at_once(ask, make_run):
    make_run("one", rounds=500)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(ask("/api/run?name=one"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [status for status, _, _ in answers] == [200] * 8
    assert len({body for _, _, body in answers}) == 1


def test_open_to_the_network_other_names_are_allowed(tmp_path):
    with PageServer(Watcher(tmp_path), "0.0.0.0", 0) as server:
        assert not server.loopback
        assert server.address == f"http://127.0.0.1:{server.server_port}/"


@pytest.mark.parametrize(
    ("host", "port", "sentence"),
    [
        ("127.0.0.1", None, r"Cannot listen at 127.0.0.1:\d+ \(address already in use\).*another --port, 0 for a free"),
        ("127.0.0.1", 70_000, "--port is 70000, but ports are 1 to 65535"),
        ("127.0.0.1", -1, "--port is -1"),
        ("no such host", 0, "Cannot listen at no such host:0"),
        ("192.0.2.1", 0, "Cannot listen at 192.0.2.1:0"),
    ],
)
def test_where_it_cannot_listen_is_a_sentence(server, tmp_path, host, port, sentence):
    with pytest.raises(MfpoError, match=sentence):
        PageServer(Watcher(tmp_path), host, server.server_port if port is None else port)
