"""The Flower apps themselves, with everything but the network between them."""

import functools
import importlib.util
import json
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from mfpo.errors import ConfigError, MfpoError
from mfpo.federation.flower import agent as warm
from mfpo.federation.flower import client_app, server_app, wire
from mfpo.federation.flower.frames import Frame
from mfpo.federation.flower.link import GridLink
from mfpo.federation.flower.orders import order_of
from mfpo.federation.flower.roster import Roster
from mfpo.federation.flower.server import Terms
from mfpo.runs import directory, training

_spec = importlib.util.spec_from_file_location("flower_helpers", Path(__file__).with_name("conftest.py"))
assert _spec is not None and _spec.loader is not None
helpers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(helpers)

pytestmark = pytest.mark.xdist_group("flower")


class LocalGrid(Grid):
    """A grid whose nodes are client apps in this process; a node that `fails` answers with an error, once each."""

    def __init__(self, sockets: dict[int, Path], fails: Iterable[int] = ()) -> None:
        self.sockets, self.fails = sockets, set(fails)
        self.replies: dict[str, Message] = {}
        self.kinds: list[str] = []

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *args: Any, **options: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.sockets)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identifiers = []
        for message in messages:
            identifier, node = f"m{len(self.kinds)}", message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = identifier
            self.kinds.append(message.metadata.message_type)
            context = Context(1, node, {"socket": str(self.sockets[node])}, RecordDict(), {})
            if node in self.fails and message.metadata.message_type == "train":
                self.fails.discard(node)
                self.replies[identifier] = Message(Error(1, "the node was lost"), reply_to=message)
            else:
                self.replies[identifier] = client_app.app(message, context)
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Flower tells a process that it starts for an app."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def sockets(make_agents: Callable[..., list[Any]]) -> Iterator[dict[int, Path]]:
    """Three agents that listen; by the number of their node."""
    agents, done = make_agents(3), threading.Event()
    threads = [threading.Thread(target=warm.listen, args=(agent, done.is_set)) for agent in agents]
    for thread in threads:
        thread.start()
    paths = {100 + agent.number: agent.folder / warm.SOCKET for agent in agents}
    while not all(path.exists() for path in paths.values()):
        time.sleep(0.02)
    yield paths
    done.set()
    for thread in threads:
        thread.join()


def make_run(path: Path, **terms: Any) -> Path:
    settings, config = helpers.job_of("mfpo", engine="flower")
    directory.create(path, settings, config)
    server_app.write_terms(path, Terms("test", **terms))
    return path


def test_a_run_over_the_apps_is_the_run_of_one_process(
    sockets: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mfpo.federation.flower.link.AGAIN", 0.0)
    said: list[str] = []
    began = time.time()
    nodes = {100: 0, 101: 1, 102: 2}
    grid = LocalGrid(sockets, fails=[101])
    run = server_app.train(make_run(tmp_path / "run"), grid, nodes, said.append)
    alone = training.train(*helpers.job_of("mfpo", devices=1), out=tmp_path / "alone")
    assert (run.path / "policy.safetensors").read_bytes() == (alone.path / "policy.safetensors").read_bytes()
    assert run.summary["evaluation"] == alone.summary["evaluation"] and run.summary["engine"] == "flower"
    differ = {"seconds", "cpu_seconds", "refused"}
    for ours, theirs in zip(run.metrics, alone.metrics, strict=True):
        assert {k: v for k, v in ours.items() if k not in differ} == {
            k: v for k, v in theirs.items() if k not in differ
        }
    assert grid.kinds.count("query") == 3 and grid.kinds.count("train") == 10  # one was asked twice
    assert sorted(said[:3]) == ["agent 0 is there.", "agent 1 is there.", "agent 2 is there."]
    assert any("agent 1 is an error: the node was lost" in sentence for sentence in said)
    lines = json.loads((run.path / "agents.json").read_text())["agents"]
    assert [line["number"] for line in lines] == [0, 1, 2] and {line["round"] for line in lines} == {3}
    assert {line["note"] for line in lines} == {"answered round 3."} and {line["refused"] for line in lines} == {0}
    assert all(began < line["last_seen"] <= time.time() for line in lines)
    with pytest.raises(ConfigError, match="mfpo federation submit"):
        training.resume(run.path, rounds=4)


def test_a_node_is_welcomed_or_told_why_not(tmp_path: Path) -> None:
    said: list[str] = []
    roster = Roster(tmp_path / "agents.json", 3)

    def greet(link: GridLink, node: int, **answer: Any) -> str:
        link._welcome(node, Frame({**wire.known(), **answer}, {}))
        return said[-1]

    with_keys = GridLink(LocalGrid({}), 3, 1.0, said.append, roster, {100: 0, 101: 1})
    assert greet(with_keys, 100, agent=0) == "agent 0 is there."
    assert "has version 0.0.1 of mfpo" in greet(with_keys, 101, agent=1, version="0.0.1")
    assert "install the same mfpo on all machines. It is left out." in said[-1]
    assert greet(with_keys, 102, agent=2) == "Node 102 says it is agent 2, but its key is another's. It is left out."
    assert greet(with_keys, 101, agent=7) == "Node 101 says it is agent 7, but there are 3. It is left out."
    assert with_keys._homes == {0: 100}
    without = GridLink(LocalGrid({}), 3, 1.0, said.append, roster)
    assert greet(without, 200, agent=0) == "agent 0 is there."
    assert "Two nodes say they are agent 0; the second has a copied folder." in greet(without, 201, agent=0)
    roster.write()
    lines = json.loads((tmp_path / "agents.json").read_text())["agents"]
    assert [line["refused"] for line in lines] == [1, 1, 1] and "Two nodes" in lines[0]["note"]


def test_a_node_that_was_left_out_takes_the_place_of_one_that_has_gone(
    sockets: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without keys, a supernode that is killed and started again is another node, and the old one stays listed."""
    now, said = [100.0], list[str]()
    monkeypatch.setattr("mfpo.federation.flower.link.time.monotonic", lambda: now[0])
    nodes = {200: sockets[100], 300: sockets[100]}
    link = GridLink(LocalGrid(nodes), 3, 1.0, said.append, Roster(tmp_path / "agents.json", 3))
    for _ in range(50):
        now[0] += 2.5
        link._call_roll()
    first, second = (200, 300) if link._homes == {0: 200} else (300, 200)
    assert link._homes == {0: first}
    assert len([sentence for sentence in said if "Two nodes say they are agent 0" in sentence]) == 1, "told once"
    del nodes[first]
    for _ in range(20):
        now[0] += 2.5
        link._call_roll()
    assert link._homes == {0: second} and said.count("agent 0 is there.") == 2


@pytest.mark.parametrize("name", ["examples.heating:Heating-v0-mfpo-1", "first.try", "x" * 200, "Größe 1"])
def test_agents_accept_the_id_of_every_run(name: str, make_agents: Callable[..., list[Any]], tmp_path: Path) -> None:
    settings, config = helpers.job_of("mfpo", engine="flower")
    run = server_app.read_terms(server_app.new_run(tmp_path / name, settings, config)).run
    question = Frame({**wire.known(), "run": run, "round": 1, "order": order_of(settings, config)}, {})
    (agent,) = make_agents(1)
    assert "The download of round 1" in str(agent.answer(question).envelope["refused"])  # it had none
    assert agent._run == run


def test_what_is_ordered_while_flower_takes_a_run_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mfpo.federation.flower import control

    settings, config = helpers.job_of("mfpo", engine="flower")
    run = server_app.new_run(tmp_path / "run", settings, config)
    federation: Any = SimpleNamespace(folder=tmp_path)
    meanwhile = lambda: None  # noqa: E731

    def flwr(*_: Any) -> dict[str, Any]:
        meanwhile()
        return {"run-id": 7}

    monkeypatch.setattr(control, "flwr", flwr)
    control.submit(federation, run)
    order = server_app.read_order(run)
    assert (order["state"], order["flower_run"]) == ("wanted", "7")
    for state in ("stopped", "failed"):
        meanwhile = functools.partial(server_app.write_order, run, {"state": state})
        control.submit(federation, run)
        assert server_app.read_order(run) == {"state": state}

    def refuses() -> None:
        raise MfpoError("Flower refused")

    meanwhile = refuses
    with pytest.raises(MfpoError):
        control.submit(federation, run)
    assert server_app.read_order(run) == {"state": "failed"}


def test_a_run_that_was_stopped_before_it_began_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, config = helpers.job_of("mfpo", engine="flower")
    run, begun = server_app.new_run(tmp_path / "run", settings, config), list[Path]()
    monkeypatch.setattr(server_app, "train", lambda run, *_: begun.append(run))
    context = Context(1, 1, {}, RecordDict(), {"run": str(run)})
    for state, expected in (("stopped", []), ("wanted", [run])):
        server_app.write_order(run, {"state": state})
        server_app.app(LocalGrid({}), context)
        assert begun == expected


def test_plain_flwr_run_makes_a_run_of_its_run_config(tmp_path: Path) -> None:
    from mfpo.federation.flower import control, layout

    document = tomllib.loads(layout.APP.replace("AGENTS", "3"))["tool"]["flwr"]["app"]["config"]
    runs = [
        server_app.found_run(tmp_path, {**document, "seed": 7, "more": '{"hidden": [4], "dropout": 0.5}'}, 9)
        for _ in range(2)
    ]
    assert [run.name for run in runs] == ["CartPole-v1-mfpo-1", "CartPole-v1-mfpo-2"]
    settings, config = directory.read_config(runs[1])
    assert (settings.agents, settings.seed, settings.engine, settings.dropout) == (3, 7, "flower", 0.5)
    assert config.hidden == (4,) and settings.rounds == 30
    assert control.state_of(runs[1]) == "waiting" and control.read_order(runs[1])["flower_run"] == "9"
    assert server_app.read_terms(runs[0]).run != server_app.read_terms(runs[1]).run
    for more, sentence in (("[1", "is not a JSON object"), ('{"x": 1}', "There is no setting 'x'")):
        with pytest.raises(ConfigError, match=sentence):
            server_app.found_run(tmp_path, {**document, "more": more}, 9)


@pytest.mark.slow
def test_a_node_that_is_not_who_it_says_is_left_out(sockets: dict[int, Path], tmp_path: Path) -> None:
    said: list[str] = []
    sockets[103] = sockets[100]  # a rogue with agent 0's answers and another key
    grid = LocalGrid(sockets)
    nodes = {101: 1, 102: 2, 103: 0}
    settings, config = helpers.job_of("mfpo", engine="flower", rounds=1)
    path = directory.create(tmp_path / "run", settings, config)
    server_app.write_terms(path, Terms("test", 2, 15.0))
    run = server_app.train(path, grid, nodes, said.append)
    assert run.metrics[0]["answered"] == 3
    assert [sentence for sentence in said if "left out" in sentence] == [
        "Node 100 says it is agent 0, but its key is another's. It is left out."
    ]
