import dataclasses
import errno
import json
import os
import shutil
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

import mfpo
from mfpo import envs, federation
from mfpo.errors import ConfigError, Diverged, RunError, UnknownName
from mfpo.runs import checkpoint, directory, files, metrics
from mfpo.runs.judging import evaluate_run, latest_policy
from mfpo.runs.settings import Settings
from mfpo.runs.training import Run, open_run, resume, train
from mfpo.types import Discrete

Job = tuple[Settings, Any]
TIMED = {"seconds", "cpu_seconds"}


def quiet(sentence: str) -> None:
    raise AssertionError(f"unexpected notice: {sentence}")


def result(path: Path) -> tuple[bytes, bytes, list[dict[str, Any]], dict[str, Any]]:
    """All that a run's outcome consists of, without the time it took."""
    rows = [{k: v for k, v in row.items() if k not in TIMED} for row in metrics.read(path / "metrics.jsonl")]
    summary = json.loads((path / "summary.json").read_text())
    kept = {k: v for k, v in summary.items() if "seconds" not in k and "per_" not in k.replace("_per_agent", "")}
    return (path / "policy.safetensors").read_bytes(), (path / "policy.json").read_bytes(), rows, kept


@pytest.fixture
def whole(job: Job, tmp_path: Path) -> Run:
    """The run as it is when nothing happens to it."""
    return train(*job, tmp_path / "whole", notice=quiet)


def interrupted(job: Job, path: Path, after: int) -> None:
    """Stop a run by Ctrl-C after a round."""

    def stop(row: dict[str, Any]) -> None:
        if row["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(*job, path, callback=stop, notice=quiet)


def test_what_a_run_leaves(job: Job, whole: Run) -> None:
    assert sorted(p.name for p in whole.path.iterdir()) == [
        "checkpoints", "config.toml", "metrics.jsonl", "policy.json", "policy.safetensors", "summary.json",
    ]  # fmt: skip
    assert [row["round"] for row in whole.metrics] == [1, 2, 3, 4, 5]
    assert whole.metrics == metrics.read(whole.path / "metrics.jsonl")
    last = whole.metrics[-1]
    episodes = 3 * 2 * 3  # agents, steps, episodes of a round
    assert last["env_steps"] == episodes * (1 + 2 + 3 + 4 + 5) and last["trajectories_per_agent"] == 2 * 3 * 5
    assert (last["bytes_up"], last["bytes_down"]) == (100 * 3 * 5, 10 * 3 * 5)
    returns = np.arange(episodes) + 5
    assert (last["return_min"], last["return_max"], last["return_mean"]) == (5, 22, returns.mean())
    assert last["return_std"] == pytest.approx(returns.std()) and last["length_mean"] == 5
    assert (last["direction_norm"], last["server_direction_norm"], last["drift"]) == (10.0, 7.0, 0.5)
    assert last["weight_max"] is None  # infinite, for which JSON has no word
    assert last["seconds"] > 0 and last["cpu_seconds"] > 0


def test_a_policy_judged_on_the_way_is_in_the_line_of_its_round(job: Job, whole: Run, tmp_path: Path) -> None:
    judged = dataclasses.replace(job[0], evaluation_every=2), job[1]
    run = train(*judged, tmp_path / "judged", notice=quiet)
    names = ["evaluation_mean", "evaluation_std", "evaluation_min", "evaluation_max"]
    assert [[name for name in row if name in names] for row in run.metrics] == [[], names, [], names, []]
    assert result(run.path)[0] == result(whole.path)[0]  # nothing else depends on it
    shorter = dataclasses.replace(judged[0], rounds=4), job[1]
    final, last = train(*shorter, tmp_path / "shorter", notice=quiet).summary["evaluation"], run.metrics[3]
    assert [last[name] for name in names] == [final["mean"], final["std"], min(final["returns"]), max(final["returns"])]
    interrupted(judged, tmp_path / "again", after=3)
    assert result(resume(tmp_path / "again", notice=quiet).path) == result(run.path)


def test_the_summary(job: Job, whole: Run) -> None:
    summary = json.loads((whole.path / "summary.json").read_text())
    assert summary == whole.summary
    for name in ("algorithm", "env", "preset", "agents", "rounds", "seed", "engine"):
        assert summary[name] == getattr(job[0], name)
    assert summary["evaluation"] == {
        "mean": 18.5,
        "std": np.std([17, 18, 19, 20]),
        "episodes": 4,
        "returns": [17, 18, 19, 20],
    }
    assert summary["wall_seconds"] == pytest.approx(sum(row["seconds"] for row in whole.metrics))
    assert summary["cpu_seconds"] == pytest.approx(sum(row["cpu_seconds"] for row in whole.metrics))
    assert summary["env_steps_per_second"] == summary["env_steps"] / summary["wall_seconds"]
    assert set(summary["versions"]) == {"mfpo", "jax", "jaxlib", "numpy", "python", "platform"}
    assert str(Path.home()) not in json.dumps(summary) and str(whole.path) not in json.dumps(summary)


def test_callbacks(job: Job, tmp_path: Path) -> None:
    seen: list[Any] = []
    run = train(*job, tmp_path / "run", callback=seen.append, started=seen.append)
    assert seen == [run.path, *run.metrics]

    def stored(row: dict[str, Any]) -> None:
        assert checkpoint.latest_round(tmp_path / "other" / "checkpoints") == row["round"]
        row.clear()  # a callback cannot spoil the run

    assert len(train(*job, tmp_path / "other", callback=stored).metrics[0]) > 10


def test_same_settings_same_files(job: Job, whole: Run, tmp_path: Path) -> None:
    assert result(train(*job, tmp_path / "again").path) == result(whole.path)
    other = train(dataclasses.replace(job[0], seed=3), job[1], tmp_path / "other")
    assert result(other.path)[0] != result(whole.path)[0]


@pytest.mark.parametrize("after", [1, 3, 5])
def test_interrupted_and_resumed(job: Job, whole: Run, tmp_path: Path, after: int) -> None:
    path = tmp_path / "run"
    interrupted(job, path, after)
    before = metrics.read(path / "metrics.jsonl")
    seen: list[int] = []
    run = resume(path, callback=lambda row: seen.append(row["round"]), notice=quiet)
    assert seen == list(range(after + 1, 6))
    assert result(path) == result(whole.path)
    assert run.metrics[:after] == before  # times included: what was done stays as it was
    assert run.summary["wall_seconds"] == pytest.approx(sum(row["seconds"] for row in run.metrics))


class Killed(BaseException):
    """The process is no more; nothing can be tidied up."""


class Mortal:
    """Stands in for the system calls that change a disk, until the n-th of them, which is done by half at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
        self.left, self.calls = last, 0
        for owner, name in [
            (os, "write"),
            (os, "fsync"),
            (os, "replace"),
            (os, "mkdir"),
            (os, "unlink"),
            (os, "ftruncate"),
        ]:
            monkeypatch.setattr(owner, name, self.wrap(name, getattr(owner, name)))
        monkeypatch.setattr(Path, "unlink", self.wrap("unlink", Path.unlink))
        monkeypatch.setattr(Path, "mkdir", self.wrap("mkdir", Path.mkdir))

    def wrap(self, name: str, call: Any) -> Any:
        def mortal(*args: Any, **options: Any) -> Any:
            self.calls += 1
            self.left -= 1
            if self.left == 0 and name == "write":
                call(args[0], args[1][: len(args[1]) // 2])
            if self.left <= 0:
                raise Killed
            return call(*args, **options)

        return mortal


def test_killed_at_every_step_to_the_disk_and_resumed(
    job: Job, whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = (dataclasses.replace(job[0], rounds=3), job[1])
    expected = result(train(*job, tmp_path / "short").path)
    last = 0
    finished = False
    while not finished:
        last += 1
        path = tmp_path / f"run{last}"
        with monkeypatch.context() as patch:
            mortal = Mortal(patch, last)
            try:
                train(*job, path, notice=quiet)
                finished = True
            except Killed:
                pass
        if (path / "config.toml").exists():
            resume(path, notice=lambda _: None)
        else:
            train(*job, path, notice=quiet)  # it died before there was a run; the same command works again
        assert result(path) == expected, f"killed at call {last}"
        assert not list(path.rglob(".tmp-*"))
    assert mortal.calls > 30


def test_leftovers_of_a_killed_process_are_removed(job: Job, tmp_path: Path) -> None:
    interrupted(job, tmp_path / "run", after=2)
    for folder in (tmp_path / "run", tmp_path / "run" / "checkpoints"):
        (folder / ".tmp-anything").write_text("half of a")
    resume(tmp_path / "run", notice=quiet)
    assert not list((tmp_path / "run").rglob(".tmp-*"))


def test_a_finished_run_has_nothing_left_to_do(job: Job, whole: Run) -> None:
    before = {p: p.read_bytes() for p in whole.path.rglob("*") if p.is_file()}
    said: list[str] = []
    again = resume(whole.path, callback=lambda row: quiet("trained"), notice=said.append)
    assert len(said) == 1 and "nothing to do" in said[0]
    assert again.summary == whole.summary and again.metrics == whole.metrics
    assert again.settings == dataclasses.replace(job[0], devices=1)  # the config names the devices that were used
    assert {p: p.read_bytes() for p in whole.path.rglob("*") if p.is_file()} == before
    assert open_run(whole.path).summary == whole.summary


def test_more_rounds(job: Job, whole: Run, tmp_path: Path) -> None:
    longer = dataclasses.replace(job[0], rounds=8, devices=1)
    expected = train(longer, job[1], tmp_path / "longer")
    run = resume(whole.path, rounds=8, notice=quiet)
    assert run.settings.rounds == 8 and directory.read_config(whole.path) == (longer, job[1])
    assert result(whole.path) == result(expected.path)
    with pytest.raises(RunError, match="already trained 8 rounds; --rounds must be at least that"):
        resume(whole.path, rounds=7)
    with pytest.raises(ConfigError, match="--rounds"):
        resume(whole.path, rounds=0)
    assert directory.read_config(whole.path) == (longer, job[1])


def test_stopped_on_the_way_to_more_rounds(job: Job, whole: Run, tmp_path: Path) -> None:
    def stop(row: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resume(whole.path, rounds=8, callback=stop, notice=quiet)
    with pytest.raises(RunError, match="not finished"):
        open_run(whole.path)
    with pytest.raises(RunError, match="already trained 6 rounds"):
        resume(whole.path, rounds=5)
    expected = train(dataclasses.replace(job[0], rounds=8), job[1], tmp_path / "longer")
    resume(whole.path, notice=quiet)
    assert result(whole.path) == result(expected.path)


def test_a_change_of_mind_about_more_rounds(job: Job, whole: Run) -> None:
    directory.write_config(whole.path, dataclasses.replace(job[0], rounds=8), job[1])
    said: list[str] = []
    assert resume(whole.path, rounds=5, notice=said.append).settings == job[0] == directory.read_config(whole.path)[0]
    assert "nothing to do" in said[0]


def test_fewer_rounds_than_planned_but_not_than_trained(job: Job, tmp_path: Path) -> None:
    interrupted(job, tmp_path / "run", after=2)
    assert resume(tmp_path / "run", rounds=3, notice=quiet).summary["rounds"] == 3


def test_killed_before_the_summary(job: Job, whole: Run, tmp_path: Path) -> None:
    expected = result(whole.path)
    for missing in (
        ["summary.json"],
        ["summary.json", "policy.json"],
        ["summary.json", "policy.json", "policy.safetensors"],
    ):
        for name in missing:
            (whole.path / name).unlink()
        with pytest.raises(RunError, match="not finished; finish it with: mfpo resume"):
            open_run(whole.path)
        resume(whole.path, callback=lambda row: quiet("trained"), notice=quiet)
        assert result(whole.path) == expected


def test_a_damaged_policy_of_a_finished_run_is_made_again(whole: Run) -> None:
    expected = result(whole.path)
    (whole.path / "policy.safetensors").write_bytes(b"broken")
    said: list[str] = []
    resume(whole.path, notice=said.append)
    assert "made again" in said[0] and result(whole.path) == expected


def test_a_truncated_checkpoint(job: Job, whole: Run, tmp_path: Path) -> None:
    interrupted(job, tmp_path / "run", after=4)
    newest = checkpoint.path_of(tmp_path / "run" / "checkpoints", 4)
    newest.write_bytes(newest.read_bytes()[:-100])
    said: list[str] = []
    resume(tmp_path / "run", notice=said.append)
    assert len(said) == 1 and "round-000004" in said[0] and "going back to the checkpoint of round 3" in said[0]
    assert result(tmp_path / "run") == result(whole.path)


def test_damaged_checkpoints_are_not_said_to_be_gone(job: Job, whole: Run, tmp_path: Path) -> None:
    interrupted(job, tmp_path / "run", after=3)
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        path.write_bytes(b"")
    said: list[str] = []
    resume(tmp_path / "run", notice=said.append)
    assert len(said) == 2 and "going back to" in said[0] and said[1].endswith("; starting again from round 1.")
    assert result(tmp_path / "run") == result(whole.path)


def test_notices_are_warnings_unless_asked_for(job: Job, whole: Run) -> None:
    for of_whom in (resume, mfpo.resume):
        with pytest.warns(UserWarning, match="nothing to do") as warned:
            of_whom(whole.path)
        assert warned[0].filename == __file__  # of whoever called


@pytest.mark.parametrize(
    "torn", [b'{"round": 4, "env_st', b'{"round": 4, "env_steps": 1}\n{"round": 5}\n', b"\x00\x00\xff"]
)
def test_lines_without_a_checkpoint_are_cut(job: Job, whole: Run, tmp_path: Path, torn: bytes) -> None:
    interrupted(job, tmp_path / "run", after=3)
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    assert len(metrics.read(tmp_path / "run" / "metrics.jsonl")) in (3, 5)
    resume(tmp_path / "run", notice=quiet)
    assert result(tmp_path / "run") == result(whole.path)


def test_lost_metrics_are_mentioned_and_cost_nothing_else(job: Job, whole: Run, tmp_path: Path) -> None:
    interrupted(job, tmp_path / "run", after=3)
    (tmp_path / "run" / "metrics.jsonl").unlink()
    said: list[str] = []
    run = resume(tmp_path / "run", notice=said.append)
    assert "lacks 3 of 3 rounds" in said[0] and [row["round"] for row in run.metrics] == [4, 5]
    assert (
        result(tmp_path / "run")[0] == result(whole.path)[0] and run.summary["env_steps"] == whole.summary["env_steps"]
    )


@pytest.mark.parametrize(
    "where", ["metrics.jsonl", "round-000003", "policy.safetensors", "policy.json", "summary.json"]
)
def test_a_full_disk(job: Job, whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    real, path, opened = os.fsync, tmp_path / "run", [0]

    def full(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}") if os.path.exists("/proc/self/fd") else ""
        if where in name:
            opened[0] += 1
            if where != "metrics.jsonl" or opened[0] == 3:
                raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError) as caught:
            train(*job, path, notice=quiet)
    assert opened[0], "the disk was never full"
    for words in ("the disk is full", "last complete checkpoint is safe", f"mfpo resume {path}"):
        assert words in str(caught.value)
    assert not list(path.rglob(".tmp-*"))
    resume(path, notice=quiet)
    assert result(path) == result(whole.path)


@pytest.mark.parametrize("wrong", [{"env": "CartPol-v1"}, {"algorithm": "fakir"}])
def test_nothing_is_created_when_the_settings_are_wrong(job: Job, tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UnknownName):
        train(dataclasses.replace(job[0], **wrong), job[1], tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_an_existing_out_is_refused_before_anything_is_built(
    job: Job, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federation, "make_engine", lambda *_: quiet("built"))
    expected = result(whole.path)
    with pytest.raises(RunError, match="already holds a run"):
        train(*job, whole.path)
    assert result(whole.path) == expected


def test_other_settings_than_the_checkpoint(job: Job, tmp_path: Path) -> None:
    interrupted(job, tmp_path / "run", after=2)
    directory.write_config(tmp_path / "run", dataclasses.replace(job[0], agents=7), job[1])
    with pytest.raises(
        RunError, match=r"holds 'agents/seen' as bool\[3\] where bool\[7\] is needed: it was written with"
    ):
        resume(tmp_path / "run")
    directory.write_config(tmp_path / "run", *job)
    resume(tmp_path / "run", notice=quiet)


@pytest.mark.parametrize(("fatal", "words"), [(1, "It was the first round"), (4, "checkpoint 3 in ")])
def test_divergence(
    job: Job, fake: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fatal: int, words: str
) -> None:
    def make_engine(*args: Any) -> Any:
        engine = fake.make_engine(*args)

        def round_(state: Any, number: int) -> Any:
            if number == fatal:
                raise Diverged("Training diverged.")
            return engine.round(state, number)

        return engine._replace(round=round_)

    with monkeypatch.context() as patch:
        patch.setattr(federation, "make_engine", make_engine)
        with pytest.raises(Diverged) as caught:
            train(*job, tmp_path / "run")
    assert words in str(caught.value) and "smaller --stepsize" in str(caught.value)
    assert str(caught.value).startswith("Training diverged. ")
    resume(tmp_path / "run", notice=quiet)


def test_ctrl_c_while_storing_finishes_the_round(
    job: Job, whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.append

    def press(path: Path, content: bytes) -> None:
        real(path, content)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(files, "append", press)
        with pytest.raises(KeyboardInterrupt):
            train(*job, tmp_path / "run")
    assert checkpoint.latest_round(tmp_path / "run" / "checkpoints") == 1
    resume(tmp_path / "run", notice=quiet)
    assert result(tmp_path / "run") == result(whole.path)


def test_two_processes_do_not_share_a_run(job: Job, whole: Run) -> None:
    with directory.locked(whole.path), pytest.raises(RunError, match="Another process"):
        resume(whole.path, rounds=9)


def test_evaluating_again(whole: Run) -> None:
    before = sorted(whole.path.rglob("*"))
    again = evaluate_run(whole.path)
    assert again == {**whole.summary["evaluation"], "seed": 2, "greedy": False, "rounds": 5}
    assert evaluate_run(whole.path, episodes=2, seed=5, greedy=True)["returns"] == [1020.0, 1021.0]
    assert sorted(whole.path.rglob("*")) == before
    with pytest.raises(ConfigError, match="--evaluation-episodes"):
        evaluate_run(whole.path, episodes=0)


def test_a_run_in_the_middle_is_judged_by_its_newest_checkpoint(job: Job, tmp_path: Path) -> None:
    """Also if it was finished, and is trained further."""
    half = train(dataclasses.replace(job[0], rounds=3), job[1], tmp_path / "half", notice=quiet)
    interrupted(job, tmp_path / "stopped", 3)
    assert not (tmp_path / "stopped" / "policy.safetensors").exists()
    policy, rounds = latest_policy(tmp_path / "stopped")
    assert rounds == 3
    for x, y in zip(jax.tree.leaves(policy.params), jax.tree.leaves(half.policy.params), strict=True):
        np.testing.assert_array_equal(x, y)
    judged = {**half.summary["evaluation"], "seed": 2, "greedy": False, "rounds": 3}
    assert evaluate_run(tmp_path / "stopped") == evaluate_run(half.path) == judged
    np.testing.assert_array_equal(mfpo.load_policy(tmp_path / "stopped").params["b"], half.policy.params["b"])

    def stop(row: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resume(half.path, rounds=5, callback=stop, notice=quiet)
    assert latest_policy(half.path)[1] == 4
    shutil.rmtree(tmp_path / "stopped" / "checkpoints")
    with pytest.raises(RunError, match="has no policy yet: no round is over. Train it with: mfpo resume"):
        latest_policy(tmp_path / "stopped")


def test_damaged_checkpoints_are_told_where_a_policy_is_asked_for(job: Job, tmp_path: Path) -> None:
    run = tmp_path / "run"
    interrupted(job, run, 2)
    newest, oldest = (checkpoint.path_of(run / "checkpoints", round_) for round_ in (2, 1))
    newest.write_bytes(newest.read_bytes()[:-1])
    assert latest_policy(run)[1] == 1
    oldest.write_bytes(b"")
    for ask in (latest_policy, evaluate_run, mfpo.load_policy, mfpo.evaluate):
        with pytest.raises(RunError) as caught:
            ask(run)
        cut = "is cut off or was not written by mfpo"
        assert str(caught.value) == (
            f"The run {run} has no policy, for no checkpoint is sound. The checkpoint {newest} {cut}. The checkpoint "
            f"{oldest} {cut}. Train it with: mfpo resume {run}"
        )


def test_a_policy_that_is_all_there_is_was_written_after_the_last_round(job: Job, whole: Run) -> None:
    expected = evaluate_run(whole.path)
    shutil.rmtree(whole.path / "checkpoints")
    (whole.path / "summary.json").unlink()
    assert evaluate_run(whole.path) == expected and expected["rounds"] == job[0].rounds


def test_lost_checkpoints_are_told(job: Job, tmp_path: Path) -> None:
    interrupted(job, tmp_path / "run", 3)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    said: list[str] = []
    resume(tmp_path / "run", notice=said.append)
    assert said == [f"The checkpoints of {tmp_path / 'run'} are gone; starting again from round 1."]


def test_a_run_at_a_prompt_is_one_line(whole: Run) -> None:
    assert repr(whole) == f"<Run {whole.path}: CartPole-v1, fake, score 18.5>"


def test_a_policy_is_not_judged_in_an_environment_that_became_another(
    whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = envs.make("CartPole-v1")
    for change, sentence in (
        ({"observation_shape": (5,)}, r"has observations of shape \(5,\), but the policy was learnt for \(4,\)"),
        ({"action": Discrete(3)}, r"has the actions Discrete\(n=3\), but the policy was learnt for Discrete\(n=2\)"),
    ):
        changed = env._replace(spec=env.spec._replace(**change))
        monkeypatch.setattr("mfpo.runs.judging.make_env", lambda settings, changed=changed: changed)
        with pytest.raises(RunError, match=sentence):
            evaluate_run(whole.path)


def test_too_little_memory_for_a_round_is_told(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes.")

    engine = federation.make_engine
    monkeypatch.setattr(federation, "make_engine", lambda *a: engine(*a)._replace(round=exhausted))
    with pytest.raises(RunError, match="Round 1 needs more memory than there is; fewer --agents or --trajectories"):
        train(*job, tmp_path / "run")


def test_the_policy_acts(whole: Run) -> None:
    assert whole.policy.act(np.zeros(4)) in (0, 1)
    assert open_run(whole.path).policy.act(np.ones((6, 4))).shape == (6,)
