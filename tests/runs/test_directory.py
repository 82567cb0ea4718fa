import contextlib
import errno
import json
import os
import threading
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mfpo.errors import RunError
from mfpo.runs import directory, summary
from mfpo.runs.settings import Settings

Job = tuple[Settings, Any]


def test_config_comes_back_exactly(job: Job, fake: ModuleType, tmp_path: Path) -> None:
    config = fake.Config(stepsize=0.1 + 0.2, cap=float("inf"), hidden=(7, 5, 3), rule="other")
    path = directory.create(tmp_path / "a" / "run", job[0], config)
    assert directory.read_config(path) == (job[0], config)
    document = tomllib.loads((path / "config.toml").read_text())
    assert document["run"]["env"] == "CartPole-v1" and document["fake"]["hidden"] == [7, 5, 3]
    assert set(document) == {"format", "written_by", "run", "fake"}


def test_no_place_is_used_twice(job: Job, tmp_path: Path) -> None:
    run = directory.create(tmp_path / "run", *job)
    before = (run / "config.toml").read_bytes()
    with pytest.raises(RunError, match=f"already holds a run; go on with it by `mfpo resume {run}`"):
        directory.create(run, replace(job[0], seed=9), job[1])
    assert (run / "config.toml").read_bytes() == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("do not lose")
    with pytest.raises(RunError, match="other things in it; give --out a name that is free"):
        directory.create(tmp_path / "full", *job)
    with pytest.raises(RunError, match="is not a folder"):
        directory.create(tmp_path / "full" / "thesis.txt", *job)
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["thesis.txt"]


def test_an_empty_folder_will_do(job: Job, tmp_path: Path) -> None:
    (tmp_path / ".tmp-config.toml").write_text("what a killed process left")
    assert directory.create(tmp_path, *job) == tmp_path


def test_another_process_may_be_quicker(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def late(path: Path) -> Iterator[None]:
        (path / "config.toml").write_text("of the other process")
        yield

    monkeypatch.setattr(directory, "locked", late)
    with pytest.raises(RunError, match="already holds a run"):
        directory.create(tmp_path, *job)
    assert (tmp_path / "config.toml").read_text() == "of the other process"


def test_default_names_are_the_first_free_ones(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: directory.create(None, *job), range(8)))
    assert sorted(map(str, paths)) == [f"runs/CartPole-v1-fake-seed2-{n}" for n in range(1, 9)]


def test_a_place_that_cannot_be_written_to(job: Job, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"Cannot create the run directory .*file/run"):
        directory.create(tmp_path / "file" / "run", *job)
    with pytest.raises(RunError, match=r"Cannot create the run directory .*too long"):
        directory.create(tmp_path / ("x" * 300), *job)


@pytest.mark.parametrize("existed", [False, True])
def test_a_full_disk_leaves_nothing_behind(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = tmp_path / "run"
    if existed:
        run.mkdir()
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunError, match="the disk is full"):
        directory.create(run, *job)
    assert run.exists() == existed and not (existed and list(run.iterdir()))


GOOD = 'format = 1\n[run]\nenv = "CartPole-v1"\nalgorithm = "fake"\n[fake]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "was not written by mfpo"),
        ("format = [", "not valid TOML"),
        ("format = 1", "incomplete"),
        ("format = 1\nrun = 3", "incomplete"),
        ('format = 1\n[run]\nalgorithm = "fake"\n[fake]\n', "incomplete"),
        (GOOD.replace("[fake]", ""), "incomplete"),
        (GOOD.replace("format = 1", "format = 2"), "has format 2, .* update mfpo"),
        (GOOD + "stepsise = 1", "unknown setting 'stepsise'. Did you mean stepsize?"),
        (GOOD + "stepsize = -1.0", "--stepsize is -1.0"),
        (GOOD.replace('"fake"', '"fakir"'), "fakir"),
        (GOOD + "[other]\n", "unknown entry 'other'"),
        (GOOD.replace("env =", "agents = 0\nenv ="), "--agents is 0"),
    ],
)
def test_a_config_that_cannot_be_used(fake: ModuleType, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(RunError, match=words) as caught:
        directory.read_config(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_foreign_directories(fake: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(GOOD)
    assert directory.read_config(tmp_path)[1] == fake.Config()
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunError, match="not valid TOML"):
        directory.read_config(tmp_path)
    (tmp_path / "config.toml").unlink()
    with pytest.raises(RunError, match="is not a run directory"):
        directory.read_config(tmp_path)
    with pytest.raises(RunError, match="There is no run directory"):
        directory.read_config(tmp_path / "missing")
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(RunError, match="Cannot read"):
        directory.read_config(tmp_path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with directory.locked(tmp_path), pytest.raises(RunError, match="Another process"), directory.locked(tmp_path):
        pass
    with directory.locked(tmp_path):
        pass


def test_a_damaged_summary_is_no_summary(tmp_path: Path) -> None:
    assert summary.read(tmp_path) is None
    (tmp_path / "summary.json").write_text(json.dumps({"rounds": 3})[:-2])
    assert summary.read(tmp_path) is None
    (tmp_path / "summary.json").write_text(json.dumps({"rounds": 3}))
    assert summary.read(tmp_path) == {"rounds": 3}


def test_who_only_looks_for_a_moment_keeps_nobody_from_training(tmp_path: Path) -> None:
    looked = threading.Event()

    def look() -> None:
        with directory.locked(tmp_path):
            looked.set()
            time.sleep(0.15)

    looker = threading.Thread(target=look)
    looker.start()
    looked.wait()
    with directory.locked(tmp_path):
        looker.join()
        with pytest.raises(RunError), directory.locked(tmp_path):  # and holds it now
            pass
