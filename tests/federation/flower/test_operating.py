"""What an operator asks for: refused before anything is made if it cannot be, and never left without an answer."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from mfpo.cli import main
from mfpo.errors import MfpoError
from mfpo.federation.flower import control, layout, processes, server_app, serving
from mfpo.runs import directory, summary
from mfpo.runs.settings import resolve_options

pytestmark = pytest.mark.xdist_group("flower")


@pytest.fixture
def federation(tmp_path: Path) -> layout.Federation:
    """Three agents, and no server."""
    return layout.create(tmp_path / "cluster", 3, "127.0.0.1", processes.free_port(), "127.0.0.1", insecure=True)


@pytest.fixture
def run(federation: layout.Federation) -> Path:
    """A run that is wanted since long ago."""
    settings, config = resolve_options({"env": "CartPole-v1", "agents": 3, "hidden": (4,), "engine": "flower"})
    made = server_app.new_run(federation.folder / "runs" / "one", settings, config)
    server_app.write_order(made, {"state": "wanted", "submitted": time.time() - 2 * serving.PATIENCE})
    return made


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The runs that a server, which is not there, was asked to train."""
    runs: list[Path] = []
    monkeypatch.setattr(control, "check_up", lambda federation: None)
    monkeypatch.setattr(control, "submit", lambda federation, run: runs.append(run))
    return runs


def end(run: Path, state: str) -> None:
    """Do what whoever trains a run does at its end."""
    if state == "finished":
        summary.write(run, {"rounds": 3})
    else:
        server_app.write_order(run, {"state": state})


@pytest.mark.parametrize("state", ["finished", "failed", "stopped"])
def test_a_run_that_ends_while_the_server_looks_is_not_submitted_again(
    state: str, federation: layout.Federation, run: Path, submitted: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with contextlib.ExitStack() as training:
        training.enter_context(directory.locked(run))

        def ends(seconds: float) -> None:
            end(run, state)
            training.close()

        monkeypatch.setattr("mfpo.runs.directory.time.sleep", ends)  # until another look at the lock
        serving._take_up(federation, said.append, set())
    assert said == [] and submitted == []
    assert control.state_of(run) == state


def test_a_run_that_nothing_trains_is_submitted_again(
    federation: layout.Federation, run: Path, submitted: list[Path]
) -> None:
    with directory.locked(run):
        assert control.state_of(run) == "running"
    said: list[str] = []
    serving._take_up(federation, said.append, set())
    assert submitted == [run]
    assert said == ["the run one is in the middle and nothing trains it; it is submitted again."]


@pytest.mark.parametrize("order", ["{", "[]", "null", "{}", '{"state": 3}', '{"state": "wanted", "submitted": null}'])
def test_a_run_that_cannot_be_read_does_not_end_the_server(
    order: str, federation: layout.Federation, run: Path, submitted: list[Path]
) -> None:
    broken = run.parent / "broken"
    broken.mkdir()
    (broken / server_app.ORDER).write_text(order)
    said: list[str] = []
    told: set[str] = set()
    for _ in range(2):
        serving._take_up(federation, said.append, told)
    assert submitted == [run, run]
    again = f"mfpo federation submit {federation.folder} --run broken"
    assert [sentence for sentence in said if "broken" in sentence] == [
        f"the run broken is left alone: its order.json is damaged; go on with: {again}"
    ]


def test_a_run_whose_order_is_damaged_can_be_submitted_again(
    federation: layout.Federation, run: Path, submitted: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (run / server_app.ORDER).write_text("{")
    with directory.locked(run):
        assert control.state_of(run) == "running"
        assert main(["federation", "stop", str(federation.folder), "--run", "one"]) == 2
    assert "stop the server, or wait until the run is over" in capsys.readouterr().err
    main(["federation", "status", str(federation.folder)])
    assert "one: damaged, round 0 of 30\n" in capsys.readouterr().out
    assert main(["federation", "submit", str(federation.folder), "--run", "one", "--detach"]) == 0
    assert submitted == [run]


@pytest.mark.parametrize("trained", [True, False])
def test_a_stop_that_flower_refuses_is_no_stop_while_the_run_is_trained(
    trained: bool, federation: layout.Federation, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> dict[str, Any]:
        raise control.Refused("Flower refused `flwr stop`: connection reset")

    monkeypatch.setattr(control, "flwr", refuse)
    server_app.write_order(run, {"state": "wanted", "flower_run": "7"})
    with contextlib.ExitStack() as training:
        if trained:
            training.enter_context(directory.locked(run))
            training.enter_context(pytest.raises(control.Refused))
        control.halt(federation, run)
    assert control.state_of(run) == ("waiting" if trained else "stopped")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("CartPole-v1 --round-timeout 0", "--round-timeout is 0, but it is a number of seconds, 1 or more; give"),
        ("CartPole-v1 --round-timeout -5", "--round-timeout is -5, but"),
        ("CartPole-v1 --round-timeout nan", "--round-timeout is nan, but"),
        ("CartPole-v1 --round-timeout inf", "--round-timeout is inf, but"),
        ("CartPole-v1 --min-agents 7", "--min-agents is 7, but the run has 3 agents; give 1 to that."),
        ("CartPole-v1 --min-agents 0", "--min-agents is 0, but"),
        ("Nope-v1", "There is no environment called 'Nope-v1'."),
        ("CartPole-v1 --world lenth=1", "--world sets 'lenth', which CartPole-v1 does not have. Did you mean length?"),
        ("CartPole-v1 --aggregation krum --tolerance 1", "The aggregation rule krum cannot withstand"),
        ("CartPole-v1 --byzantine 4", "--byzantine is 4, but there are only 3 agents"),
        ("CartPole-v1 --participation 0.1", "--participation 0.1 of 3 agents selects nobody"),
        ("CartPole-v1 --algorithm fed_dqn --reference-every 2", "--reference-every is 2, but this algorithm's server"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_there_is_a_run(
    arguments: str,
    sentence: str,
    federation: layout.Federation,
    submitted: list[Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["federation", "submit", str(federation.folder), *arguments.split(), "--detach"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"mfpo: {sentence}") and err.count("\n") == 1
    assert submitted == [] and not (federation.folder / "runs").exists()


def test_what_can_be_trained_is_submitted_on_its_terms(
    federation: layout.Federation, submitted: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["CartPole-v1", "--hidden", "4", "--min-agents", "2", "--round-timeout", "1", "--detach"]
    assert main(["federation", "submit", str(federation.folder), *asked]) == 0
    (run,) = submitted
    assert capsys.readouterr().err == f"mfpo: submitted {run}\n"
    assert server_app.read_terms(run)[1:] == (2, 1.0)
    assert sorted(path.name for path in run.iterdir()) == ["config.toml", "federation.json", "order.json"]


def test_status_without_a_server_shows_the_runs_and_fails(
    federation: layout.Federation, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["federation", "status", str(federation.folder)]) == 2
    out, err = capsys.readouterr()
    assert out == "one: waiting, round 0 of 30\n"
    assert err.startswith(f"mfpo: The server does not answer at {federation.local_address}; start it on this machine")


def test_status_shows_how_far_a_run_is(
    federation: layout.Federation, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"round": 1, "return_mean": 0.0342, "answered": 2}
    (run / directory.METRICS).write_text(json.dumps(row) + "\n")
    main(["federation", "status", str(federation.folder)])
    assert capsys.readouterr().out == "one: waiting, round 1 of 30, return 0.0342, 2 agents answered\n"


def test_status_of_a_broken_run_hides_neither_the_others_nor_the_server(
    federation: layout.Federation, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = run.with_name("broken")
    broken.mkdir()
    server_app.write_order(broken, {"state": "wanted"})
    assert main(["federation", "status", str(federation.folder)]) == 2
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == [
        f"broken: {broken} is not a run directory: it has no config.toml.",
        "one: waiting, round 0 of 30",
    ]
    assert err.startswith("mfpo: The server does not answer")


NODES = [{"node-id": "11", "status": "online"}, {"node-id": "13", "status": "offline"}]


def test_status_shows_the_agents(
    federation: layout.Federation, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control, "check_up", lambda federation: None)
    monkeypatch.setattr(control, "flwr", lambda *arguments: {"nodes": NODES})
    assert main(["federation", "status", str(federation.folder)]) == 0
    assert capsys.readouterr().out == "1 agents: online\none: waiting, round 0 of 30\n"
    with_keys = federation._replace(insecure=False)
    unknown = [f"agent {number}: unknown to the server" for number in range(3)]
    assert control.agent_lines(with_keys) == unknown  # their keys are not registered yet
    (federation.folder / "server" / control.NODES).write_text('{"13": 2, "11": 0}')
    assert control.agent_lines(with_keys) == ["agent 0: online", unknown[1], "agent 2: offline"]


def test_status_says_what_else_is_wrong(
    federation: layout.Federation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: Any) -> dict[str, Any]:
        raise MfpoError("Flower refused `flwr supernode list`: why")

    monkeypatch.setattr(control, "check_up", lambda federation: None)
    monkeypatch.setattr(control, "flwr", refuse)
    assert main(["federation", "status", str(federation.folder)]) == 2
    assert capsys.readouterr().err == "mfpo: Flower refused `flwr supernode list`: why\n"


@pytest.mark.parametrize("state", ["finished", "failed", "stopped"])
def test_there_is_nothing_to_stop_in_a_run_that_does_not_run(
    state: str, federation: layout.Federation, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end(run, state)
    before = server_app.read_order(run)
    assert main(["federation", "stop", str(federation.folder), "--run", "one"]) == 0
    assert capsys.readouterr().out == f"one: {state}; there is nothing to stop.\n"
    assert server_app.read_order(run) == before


def test_a_run_that_is_wanted_is_stopped(
    federation: layout.Federation, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["federation", "stop", str(federation.folder), "--run", "one"]) == 0
    assert capsys.readouterr().out.startswith("stopped one; go on with: mfpo federation submit")
    assert control.state_of(run) == "stopped"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), FileNotFoundError(2, "No such file", "flwr")])
def test_a_run_that_could_not_be_submitted_is_not_wanted(
    error: BaseException, federation: layout.Federation, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_app.write_order(run, {"state": "stopped"})

    def fail(*arguments: Any, **options: Any) -> Any:
        assert control.state_of(run) == "waiting"
        raise error

    monkeypatch.setattr(control.subprocess, "run", fail)
    with pytest.raises((KeyboardInterrupt, MfpoError)):
        control.submit(federation, run)
    assert server_app.read_order(run) == {"state": "stopped"}


def test_without_its_program_flower_is_asked_for_nothing(
    federation: layout.Federation, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_app.write_order(run, {"state": "wanted", "flower_run": "7"})
    monkeypatch.setattr(processes, "environment", lambda home: {"PATH": ""})
    for ask in (control.submit, control.halt):  # that it could not be stopped is no success
        with pytest.raises(MfpoError, match=r"Cannot run Flower's `flwr` .*\(flwr\).* pip install 'mfpo\[flower\]'"):
            ask(federation, run)
