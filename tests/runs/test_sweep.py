"""A sweep runs what is missing, side by side where it can, and a run of it is like any other."""

import dataclasses
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from mfpo import federation
from mfpo.errors import ConfigError, Diverged, RunError
from mfpo.reporting.curves import SAME_EXPERIMENT
from mfpo.runs import directory, entries, metrics, sweep, training
from mfpo.runs.entries import Entry

SHARED = {"env": "CartPole-v1", "algorithm": "fake", "rounds": 4, "evaluation_episodes": 4}


def planned(out: Path, values: tuple[float, ...] = (3, 2), seeds: int = 3, **changes: Any) -> sweep.Sweep:
    return sweep.plan("agents", values, seeds, out, SHARED | changes, {})


class Listener:
    """Writes down what a sweep tells; may stop it."""

    def __init__(self, stop_at: tuple[str, int] | None = None) -> None:
        self.rows: list[tuple[str, int]] = []
        self.finished: list[str] = []
        self.notices: list[str] = []
        self.threads: set[int] = set()
        self._stop_at = stop_at

    def watch(self) -> sweep.Watch:
        return sweep.Watch(
            lambda entry: None, self._row, lambda entry, run: self.finished.append(name(entry)), self.notices.append
        )

    def _row(self, entry: Entry, row: metrics.Row) -> None:
        self.rows.append((name(entry), row["round"]))
        self.threads.add(threading.get_ident())
        if self.rows[-1] == self._stop_at:
            raise RunError("the disk is full")


def name(entry: Entry) -> str:
    return f"{entry.path.parent.name}/{entry.path.name}"


def numbers(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in metrics.read(path / directory.METRICS)]


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "devices", lambda: ["first", "second"])


def test_every_value_and_seed_is_an_ordinary_run(fake: ModuleType, two_devices: None, tmp_path: Path) -> None:
    listener, whole = Listener(), planned(tmp_path / "sweep")
    sweep.run(whole, listener.watch())
    assert list(whole.points) == [2, 3]
    assert sorted(listener.finished) == [f"agents={n}/seed-{s}" for n in (2, 3) for s in range(3)]
    assert len(listener.rows) == 6 * 4 and not listener.notices
    assert threading.get_ident() not in listener.threads and len(listener.threads) == 2
    for value, point in whole.points.items():
        for seed, entry in enumerate(point):
            settings, config = directory.read_config(entry.path)
            assert (settings.agents, settings.seed, settings.devices) == (value, seed, 1)
            alone = training.train(settings, config, tmp_path / "alone" / name(entry))
            assert numbers(entry.path) == numbers(alone.path) and len(numbers(alone.path)) == 4
            assert (entry.path / "policy.safetensors").read_bytes() == (alone.path / "policy.safetensors").read_bytes()
            assert training.open_run(entry.path).summary["evaluation"] == alone.summary["evaluation"]


def test_stopped_in_the_middle_and_repeated(fake: ModuleType, two_devices: None, tmp_path: Path) -> None:
    first, second = Listener(stop_at=("agents=2/seed-1", 2)), Listener()
    with pytest.raises(RunError, match="the disk is full"):
        sweep.run(planned(tmp_path), first.watch())
    assert "agents=2/seed-1" not in first.finished
    sweep.run(planned(tmp_path), second.watch())
    assert ("agents=2/seed-1", 3) in second.rows and ("agents=2/seed-1", 2) not in second.rows
    assert sorted(first.rows + second.rows) == [
        (f"agents={n}/seed-{s}", t) for n in (2, 3) for s in range(3) for t in range(1, 5)
    ]
    assert all(map(entries.is_finished, planned(tmp_path).entries))
    third = Listener()
    sweep.run(planned(tmp_path), third.watch())
    assert third.rows == []


def test_a_seed_that_diverges_does_not_stop_the_others(
    fake: ModuleType, two_devices: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = federation.make_engine_on

    def make(device: Any, algorithm: Any, env: Any, agents: int, seed: int, faults: Any) -> federation.Engine:
        engine = usual(device, algorithm, env, agents, seed, faults)

        def round_(state: federation.State, number: int) -> tuple[federation.State, federation.RoundLog]:
            if (agents, seed, number) == (3, 0, 2):
                raise Diverged("Training diverged.")
            return engine.round(state, number)

        return engine._replace(round=round_)

    monkeypatch.setattr(federation, "make_engine_on", make)
    listener = Listener()
    sweep.run(planned(tmp_path), listener.watch())
    assert len(listener.finished) == 5 and "agents=3/seed-0" not in listener.finished
    (sentence,) = listener.notices
    assert "agents=3" in sentence and "The last finite state is checkpoint 1" in sentence


def test_other_engines_run_one_after_the_other(fake: ModuleType, tmp_path: Path) -> None:
    listener = Listener()
    sweep.run(planned(tmp_path, seeds=1, engine="debug"), listener.watch())
    assert listener.threads == {threading.get_ident()}
    assert listener.finished == ["agents=2/seed-0", "agents=3/seed-0"]


def test_it_can_be_extended_but_not_mixed(fake: ModuleType, tmp_path: Path) -> None:
    sweep.run(planned(tmp_path, seeds=1), Listener().watch())
    listener = Listener()
    sweep.run(planned(tmp_path, (2, 3, 5), seeds=2, rounds=6), listener.watch())
    assert len(listener.rows) == 2 * 2 + 4 * 6
    with pytest.raises(RunError, match="seed-0 holds a run with other settings"):
        sweep.plan("agents", (2, 3), 1, tmp_path, SHARED, {"stepsize": 0.5})
    with pytest.raises(RunError, match="was trained for 6 rounds, more than 4"):
        planned(tmp_path)


def test_what_is_not_swept_does_not_make_another_experiment_either() -> None:
    assert set(sweep.IDLE) == set(SAME_EXPERIMENT) - {"engine", "preset"}  # which are no numbers


@pytest.mark.parametrize("name", ["devices", "processes"])
def test_what_does_not_change_a_result_may_change(fake: ModuleType, tmp_path: Path, name: str) -> None:
    first = planned(tmp_path, seeds=1).entries[0]
    directory.create(first.path, dataclasses.replace(first.settings, **{name: 2}), first.config)
    assert planned(tmp_path, seeds=1).entries[0] == first


def test_a_place_that_cannot_be_looked_at_is_told(fake: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="Cannot create the run directory"):
        sweep.run(planned(tmp_path / ("x" * 300), seeds=1), Listener().watch())


def test_an_option_of_the_algorithm(fake: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = sweep.plan("stepsize", (0.5, 0.25), 1, None, SHARED | {"agents": 2}, {"cap": 3.0})
    place = Path("runs/sweep-CartPole-v1-fake-stepsize")
    assert [entry.path for entry in made.entries] == [place / f"stepsize={a}" / "seed-0" for a in (0.25, 0.5)]
    assert [(entry.config.stepsize, entry.config.cap) for entry in made.entries] == [(0.25, 3.0), (0.5, 3.0)]


@pytest.mark.parametrize(
    ("option", "values", "seeds", "sentence"),
    [
        ("agents", (1, 2), 0, "--seeds is 0"),
        ("agents", (5,), 1, "--agents has one value; give a sweep at least two, as in --agents 5,10"),
        ("agents", (1, 2, 1), 1, "--agents names 1 twice"),
        ("agents", (0, 1), 1, "--agents is 0, but it must be at least 1"),
        ("devices", (1, 2), 1, "--devices does not change what is learned"),
        ("processes", (1, 2), 1, "--processes does not change what is learned"),
        ("reference_every", (1, 2), 1, "--reference-every does not change what is learned"),
    ],
)
def test_plans_that_make_no_sense(
    fake: ModuleType, tmp_path: Path, option: str, values: tuple[float, ...], seeds: int, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        sweep.plan(option, values, seeds, tmp_path, SHARED, {})
    assert not list(tmp_path.iterdir())


def test_a_value_that_cannot_be_run_is_found_before_any_run(fake: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot withstand a single liar among 1 agents"):
        sweep.run(planned(tmp_path, (1, 5), aggregation="median"), Listener().watch())
    assert not list(tmp_path.iterdir())


def test_seconds_are_shared(
    fake: ModuleType, two_devices: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr(training.time, "process_time", lambda: float(next(ticks)))
    sweep.run(planned(tmp_path, seeds=1), Listener().watch())
    spent = [row["cpu_seconds"] for row in metrics.read(tmp_path / "agents=2" / "seed-0" / directory.METRICS)]
    assert np.sum(spent) >= 4 * 0.5 and all(value % 0.5 == 0 for value in spent)
