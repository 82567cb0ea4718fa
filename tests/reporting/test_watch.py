import fcntl
import json
import os
import shutil
import time

import pytest

from mfpo.errors import RunError
from mfpo.reporting.watch import Watcher, members_of
from mfpo.runs import directory, locks


def age(run, seconds):
    """As if nothing had been written for so long."""
    then = time.time() - seconds
    for file in run.iterdir():
        os.utime(file, (then, then))


def a_second_after(run):
    """A clock."""
    return lambda: (run / "metrics.jsonl").stat().st_mtime + 1


def names(watcher):
    return [run["name"] for run in watcher.runs()["runs"]]


def state(watcher, name):
    return watcher.run(name)["state"]


def test_a_run_is_told_in_a_line_and_on_a_page(make_run, tmp_path):
    run = make_run("fast", rounds=30, finished=False, agents=4, seed=3)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:12]))
    last = json.loads(lines[11])
    watcher = Watcher(tmp_path, a_second_after(run))
    (told,) = watcher.runs()["runs"]
    wanted = {"name": "fast", "env": "CartPole-v1", "agents": 4, "seed": "3", "round": 12, "rounds": 30}
    assert {key: told[key] for key in wanted} == wanted
    assert told["last"] == {name: last[name] for name in ("return_mean", "return_std")}
    assert told["seconds_left"] == pytest.approx(18 * 0.4)
    assert told["evaluation"] is None and len(told["spark"]) == 12
    page = watcher.run("fast")
    assert {key: page[key] for key in wanted} == wanted
    assert page["counts"]["bytes_up"] == 31_000 * 12
    assert page["total_seconds"] == pytest.approx(12 * 0.4)
    assert page["curve"]["round"] == list(range(1, 13))
    assert (page["members"], page["rejected"]) == (None, None)  # in process, and of an older version
    json.dumps(page, allow_nan=False)


def test_rejected_and_refused_uploads_are_added_up(make_run, tmp_path):
    run = make_run("run", rounds=3)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row | {"rejected": t, "refused": 1} for t, row in enumerate(rows)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = Watcher(tmp_path).run("run")
    assert (page["rejected"], page["refused"]) == (3, 3)
    assert page["curve"]["rejected"] == [0, 1, 2]


def test_a_finished_run_has_its_score(make_run, tmp_path):
    run = make_run("run", rounds=3)
    page = Watcher(tmp_path).run("run")
    assert (page["state"], page["seconds_left"]) == ("finished", None)
    assert page["evaluation"] == {"mean": 500, "std": 0, "episodes": 100}
    # given more rounds, it is not finished any more
    (run / "summary.json").write_text(json.dumps({"rounds": 2, "evaluation": {"mean": 1}}))
    age(run, 3600)
    page = Watcher(tmp_path).run("run")
    assert (page["state"], page["evaluation"]) == ("stopped", None)


def test_rounds_not_long_ago_mean_running(make_run, tmp_path):
    run = make_run("run", finished=False)  # rounds of 0.4 s
    assert state(Watcher(tmp_path, a_second_after(run)), "run") == "running"
    assert state(Watcher(tmp_path, lambda: a_second_after(run)() + 60), "run") == "stopped"


@pytest.mark.skipif(not locks.TABLE.exists(), reason="this system does not list its locks")
def test_a_held_lock_means_running_and_its_end_means_the_end(make_run, tmp_path):
    run = make_run("run", finished=False)
    age(run, 3600)
    watcher = Watcher(tmp_path)
    assert state(watcher, "run") == "stopped"
    with directory.locked(run):
        assert state(watcher, "run") == "running"
    (run / "metrics.jsonl").touch()
    assert state(watcher, "run") == "stopped"  # its lock was seen before: that it is not now is a proof


def test_looking_takes_no_lock(make_run, tmp_path, monkeypatch):
    make_run("run", finished=False)
    monkeypatch.setattr(fcntl, "flock", lambda *_: pytest.fail("it locked the run"))
    watcher = Watcher(tmp_path)
    assert names(watcher) == ["run"] and watcher.run("run") is not None


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ({"state": "failed", "reason": "Agent 1 has another version."}, ("failed", "Agent 1 has another version.")),
        ({"state": "wanted"}, ("waiting", "")),
        ({"state": "stopped"}, ("stopped", "")),
    ],
)
def test_a_run_of_a_federation_says_what_was_wanted_of_it(make_run, tmp_path, order, expected):
    run = make_run("run", finished=False)
    (run / "order.json").write_text(json.dumps(order))
    age(run, 3600)
    page = Watcher(tmp_path).run("run")
    assert (page["state"], page["reason"]) == expected


def test_running_ones_come_first_then_the_newest(make_run, tmp_path):
    for number, name in enumerate(["new", "middle", "old"]):
        age(make_run(name, rounds=2), 100 * (number + 1))
    oldest = make_run("oldest", rounds=2, finished=False)
    age(oldest, 1000)
    assert names(Watcher(tmp_path, a_second_after(oldest))) == ["oldest", "new", "middle", "old"]


def test_runs_appear_and_vanish(make_run, tmp_path):
    watcher = Watcher(tmp_path)
    assert names(watcher) == []
    run = make_run("run", rounds=2)
    assert names(watcher) == ["run"]
    shutil.rmtree(run)
    assert names(watcher) == [] and watcher.run("run") is None
    make_run("run", rounds=4)
    assert watcher.run("run")["round"] == 4


def test_a_folder_that_is_gone_is_said_to_be(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    watcher = Watcher(folder)
    assert watcher.runs()["there"]
    folder.rmdir()
    assert watcher.runs() == {"title": "runs", "single": False, "there": False, "runs": []}


def test_a_run_itself_can_be_watched(make_run):
    run = make_run("alone", rounds=2)
    listed = Watcher(run).runs()
    assert listed["single"] and [entry["name"] for entry in listed["runs"]] == ["alone"]
    assert Watcher(run).run("alone")["round"] == 2


def test_folders_of_comparisons_are_searched_and_other_things_are_not(make_run, tmp_path):
    make_run("runs/one", rounds=1)
    make_run("runs/compare/mfpo-seed0", rounds=1)
    make_run("runs/a/b/c/too-deep", rounds=1)
    make_run("runs/.hidden/run", rounds=1)
    make_run("elsewhere/run", rounds=1)
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs" / "other").mkdir()
    (tmp_path / "runs" / "other" / "config.toml").write_text("[project]\n")
    (tmp_path / "runs" / "half").mkdir()
    (tmp_path / "runs" / "half" / "config.toml").write_text("[run")
    assert sorted(names(Watcher(tmp_path / "runs"))) == ["compare/mfpo-seed0", "one"]


def test_of_a_federation_only_the_runs_are_shown(make_run, tmp_path):
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "federation.toml").write_text("agents = 3\n")
    watcher = Watcher(tmp_path / "cluster")
    assert names(watcher) == []
    make_run("cluster/runs/first", rounds=1)
    make_run("cluster/server/run", rounds=1)
    assert names(watcher) == ["first"]
    assert watcher.run("../server/run") is None and watcher.run("cluster/server/run") is None


@pytest.mark.parametrize("given", ["nothing", "file"])
def test_what_cannot_be_watched_is_a_sentence(tmp_path, given):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="give a run directory, a folder of runs, or the folder of a federation"):
        Watcher(tmp_path / given)


def agent(number=0, last_seen: float | None = 100.0, round_=7, refused=0, **more):
    return {"number": number, "last_seen": last_seen, "round": round_, "refused": refused, "note": "said"} | more


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (agent(), "answering"),
        (agent(refused=3), "answering"),
        (agent(round_=6), "silent"),
        (agent(round_=2, refused=1), "silent"),  # refused once, long ago
        (agent(round_=4, refused=3), "refused"),  # in every round since
        (agent(last_seen=None, round_=0), "never"),
        (agent(last_seen=None, round_=0, refused=7), "refused"),
    ],
)
def test_agents_have_a_word(given, word):
    (member,) = members_of({"agents": [given]}, 7)
    assert (member["word"], member["note"]) == (word, "said")


def test_agents_that_may_miss_rounds_are_not_silent_at_once():
    assert members_of({"agents": [agent(round_=4)]}, 7, missing_is_usual=3)[0]["word"] == "answering"


def test_notes_of_agents_may_be_broken():
    broken = [3, None, {"number": "x", "last_seen": "never", "round": None, "refused": -1e999, "note": 5}, agent(2)]
    members = members_of({"agents": broken}, 7)
    assert [member["number"] for member in members] == [None, 2]
    json.dumps(members, allow_nan=False)
    assert members_of({}, 7) is None and members_of({"agents": "all"}, 7) is None


def test_agents_are_read_from_the_run(make_run, tmp_path):
    run = make_run("run", rounds=7, finished=False)
    (run / "agents.json").write_text(json.dumps({"agents": [agent(1), agent(0, round_=5)]}))
    members = Watcher(tmp_path).run("run")["members"]
    assert [(member["number"], member["word"]) for member in members] == [(0, "silent"), (1, "answering")]
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace("[run]\n", "[run]\ndropout = 0.5\n"))
    members = Watcher(tmp_path).run("run")["members"]
    assert [member["word"] for member in members] == ["answering", "answering"]  # who drops out now and then comes back
