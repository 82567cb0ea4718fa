"""The warm agent: what it refuses, what it remembers, who may talk to it."""

import contextlib
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

pytest.importorskip("flwr")

from mfpo.errors import RunError
from mfpo.federation.flower import agent as warm
from mfpo.federation.flower import frames, wire
from mfpo.federation.flower.frames import Entry, Frame
from mfpo.federation.flower.orders import order_of
from mfpo.runs import files
from mfpo.runs.building import make_algorithm, make_env
from mfpo.runs.settings import resolve_options

pytestmark = pytest.mark.xdist_group("flower")
JOB = resolve_options(
    {"env": "CartPole-v1", "agents": 3, "hidden": (4,), "horizon": 50, "local_steps": 2, "trajectories": 3, "seed": 5}
)


def question(number: int = 1, **change: Any) -> Frame:
    algorithm = make_algorithm(*JOB, make_env(JOB[0]))
    download = wire.entries_of(algorithm.download(algorithm.init(jax.random.key(7))))
    envelope = {**wire.known(), "run": "test", "round": number, "order": order_of(*JOB)}
    return Frame({**envelope, **change}, {"download": download})


def refusal(agent: Any, asked: Frame) -> str:
    answer = agent.answer(asked)
    assert answer.groups == {} and answer.envelope["agent"] == agent.number
    return str(answer.envelope["refused"])


def test_it_refuses_what_it_must(make_agents: Callable[..., list[Any]], tmp_path: Path) -> None:
    agent = make_agents(4)[3]
    elsewhere = resolve_options({"env": "somewhere.else:Env-v0", "agents": 9, "preset": "default"})
    assert "agents 0 to 2; this is agent 3" in refusal(agent, question())
    assert "rounds count from 1" in refusal(agent, question(0))
    assert "names the run '../x'" in refusal(agent, question(run="../x"))
    assert "has format 9 of mfpo, and here it is 1; install the same" in refusal(agent, question(format=9))
    assert "has version 0.0.1 of mfpo" in refusal(agent, question(version="0.0.1"))
    assert "does not say what run" in refusal(agent, question(order="{}"))
    assert "add it to `environments`" in refusal(agent, question(order=order_of(*elsewhere)))
    spoilt = question()
    name = next(iter(spoilt.groups["download"]))
    spoilt.groups["download"][name] = Entry("float32", (999,), bytes(3996))
    assert "float32[999]" in refusal(make_agents(1)[0], spoilt)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_it_remembers_and_answers_the_same_again(make_agents: Callable[..., list[Any]], tmp_path: Path) -> None:
    first = make_agents(1)[0]
    answers = [first.answer(question(number)) for number in (1, 2)]
    assert "refused" not in answers[0].envelope and answers[0] != answers[1]
    fresh = make_agents(1)[0]
    assert [fresh.answer(question(number)) for number in (1, 2)] == answers
    with_other_download = question(2)
    name, entry = next((name, x) for name, x in with_other_download.groups["download"].items() if x.dtype == "float32")
    with_other_download.groups["download"][name] = entry._replace(data=bytes(len(entry.data)))
    assert fresh.answer(with_other_download).groups["upload"] != answers[1].groups["upload"]
    fresh.answer(question(3))
    assert "remembers only rounds from 2 on" in refusal(fresh, question(1, order=order_of(*JOB)))
    newest = tmp_path / "agents" / "00" / "runs" / "test" / "round-000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-10])
    notices: list[str] = []
    make_agents(1, notices)[0].answer(question(3))
    assert len(notices) == 1 and "round-000003.safetensors is cut off" in notices[0]


def test_its_socket_is_its_users_alone_and_survives_nonsense(
    make_agents: Callable[..., list[Any]], tmp_path: Path
) -> None:
    notices: list[str] = []
    agent = make_agents(1, notices)[0]
    done = threading.Event()
    thread = threading.Thread(target=warm.listen, args=(agent, done.is_set))
    thread.start()
    path = agent.folder / warm.SOCKET
    try:
        for _ in range(100):
            if path.exists() and stat.S_IMODE(path.stat().st_mode) == 0o600:
                break
            time.sleep(0.05)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        hello = Frame({"format": 1, "version": "0.0.1", "kind": "hello"}, {})
        assert frames.call(path, hello, 10).envelope["agent"] == 0
        assert any("The greeting of the server has version 0.0.1 of mfpo" in notice for notice in notices)
        with pytest.raises(RunError, match="Another process"):
            warm.listen(agent)
        with socket.socket(socket.AF_UNIX) as nonsense, frames.short_path(path) as name:
            nonsense.connect(name)
            nonsense.sendall(b"\xff" * 40)
            with contextlib.suppress(ConnectionResetError):
                assert nonsense.recv(1) == b""
        assert frames.call(path, hello, 10).envelope["agent"] == 0
        assert any("is not a message" in notice for notice in notices)
    finally:
        done.set()
        thread.join()
    assert not path.exists()


def test_what_it_remembers_is_of_the_run_it_is_asked_for(
    make_agents: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the disk says when it first hears of that run."""
    said: list[str] = []
    agent = make_agents(1, said)[0]
    assert agent.answer(question(run="one")).groups["upload"]

    def fail(_: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "remove_temporary", fail)
    assert agent.answer(question(run="two")).groups["upload"]
    assert "cannot be removed (input/output error); it does no harm" in said[-1]
    assert [memory.round for memory in agent._memories] == [1]
    assert [path.parent.name for path in sorted(tmp_path.rglob("round-*.safetensors"))] == ["one", "two"]


def test_an_environment_that_fails_is_told_as_its_own(
    make_agents: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    from gymnasium.envs.classic_control.acrobot import AcrobotEnv

    def fail(self: Any, action: Any) -> Any:
        raise RuntimeError("motor")

    monkeypatch.setattr(AcrobotEnv, "step", fail)
    assert gymnasium
    options = {"agents": 3, "hidden": (4,), "horizon": 50, "local_steps": 1, "trajectories": 2}
    settings, config = resolve_options({"env": "Acrobot-v1", **options})
    algorithm = make_algorithm(settings, config, make_env(settings))
    download = wire.entries_of(algorithm.download(algorithm.init(jax.random.key(7))))
    envelope = {**wire.known(), "run": "test", "round": 1, "order": order_of(settings, config)}
    said = refusal(make_agents(3)[2], Frame(envelope, {"download": download}))
    assert "The environment Acrobot-v1 of agent 2 failed in step 1 of its episode: RuntimeError: motor" in said
