"""What an operator wants to know of runs, read from their directories while others write them. It writes nothing.

A run is
  finished   if its summary is of as many rounds as its config asks for,
  running    if a process holds its lock, or, where locks cannot be seen, if a round ended not long ago,
  failed     if the server of its federation says so,
  waiting    if it was submitted to a federation whose server has not taken it up,
  stopped    else.
"""

import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mfpo.errors import RunError
from mfpo.reporting.folders import find_runs, is_run
from mfpo.reporting.following import Followed, FollowedRows, Row, mark, number, read_object
from mfpo.reporting.records import load_summary, load_tables
from mfpo.reporting.series import SPARK, curve_of, recent, thin, total
from mfpo.runs import locks

MOST_AGENTS = 1000  # rows that are shown
COUNTS = ("env_steps", "trajectories_per_agent", "bytes_up", "bytes_down", "answered", "drift", "seconds")
COLUMNS = ("return_mean", "return_std", "return_min", "return_max", "rejected", "refused", *COUNTS)
DESCRIBED = ("env", "algorithm", "preset", "seed", "engine", "aggregation", "byzantine", "attack", "world")


class State(NamedTuple):
    """A word, and a sentence where there is one to say."""

    word: str
    reason: str = ""


class Watched:
    """One run directory, and what was read of it so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tables = Followed(path / "config.toml", _settings)
        self._rows = FollowedRows(path / "metrics.jsonl", COLUMNS)
        self._spark = Followed(path / "metrics.jsonl", lambda _: curve_of(thin(self._rows.now(), SPARK))["mean"])
        self._digest = Followed(path / "metrics.jsonl", lambda _: _digest(self._rows.now()))
        self._summary = Followed(path / "summary.json", lambda file: load_summary(file.parent))
        self._agents = Followed(path / "agents.json", read_object)
        self._order = Followed(path / "order.json", read_object)
        self._was_locked = False  # then its lock can be seen, and not to see it means something

    @property
    def settings(self) -> dict[str, Any] | None:
        """The settings of the run; None if this is none, or no more."""
        return self._tables.now()

    @property
    def started(self) -> float:
        """When it was made, or was given more rounds."""
        return _time_of(self.path / "config.toml") or 0.0

    def state(self, held: frozenset[tuple[int, int]], now: float) -> State:
        """What is going on, as far as files tell."""
        summary, order, rounds = self._summary.now(), self._order.now(), (self.settings or {}).get("rounds")
        if summary and summary.get("rounds", rounds) == rounds:
            return State("finished")
        if self._runs(held, now):
            return State("running")
        if order.get("state") == "failed":
            return State("failed", str(order.get("reason", "")))
        return State("waiting") if order.get("state") == "wanted" else State("stopped")

    def _runs(self, held: frozenset[tuple[int, int]], now: float) -> bool:
        try:
            status = os.stat(self.path)
        except OSError:
            return False
        if (status.st_dev, status.st_ino) in held:
            self._was_locked = True
            return True
        updated = _time_of(self.path / "metrics.jsonl")
        patience = 5 + 3 * max(recent(self._rows.now(), "seconds"), default=0.0)
        return not self._was_locked and updated is not None and abs(now - updated) < patience

    def overview(self, name: str, state: State) -> dict[str, Any]:
        """The run in a line: what it is, how far, how well."""
        settings, rows, evaluation = self.settings or {}, self._rows.now(), self._summary.now().get("evaluation")
        last: Row = rows[-1] if rows else {}
        rounds = number(settings.get("rounds"))
        pace = recent(rows, "seconds")
        left = statistics.median(pace) * max(0, rounds - last["round"]) if pace and rounds else None
        return {
            "name": name,
            **{key: str(settings.get(key, "")) for key in DESCRIBED},
            "agents": number(settings.get("agents")),
            "state": state.word,
            "reason": state.reason,
            "round": last.get("round", 0),
            "rounds": rounds,
            "seconds_left": left if state.word == "running" else None,
            "updated": _time_of(self.path / "metrics.jsonl"),
            "started": self.started,
            "last": {key: last.get(key) for key in ("return_mean", "return_std")},
            "evaluation": _evaluation(evaluation) if state.word == "finished" else None,
            "spark": self._spark.now(),
        }

    def details(self, name: str, state: State) -> dict[str, Any]:
        """The run on a page: its curves, costs and agents."""
        rows = self._rows.now()
        last: Row = rows[-1] if rows else {}
        return self.overview(name, state) | {
            **self._digest.now(),
            "counts": {key: last.get(key) for key in COUNTS},
            "members": members_of(self._agents.now(), last.get("round", 0), _missing_is_usual(self.settings or {})),
        }


def _digest(rows: list[Row]) -> dict[str, Any]:
    """What takes a look at every row."""
    known = [row["return_mean"] for row in rows if row.get("return_mean") is not None]
    sums = {"total_seconds": "seconds", "rejected": "rejected", "refused": "refused"}
    return {
        **{key: total(rows, name) for key, name in sums.items()},
        "best": max(known, default=None),
        "curve": curve_of(thin(rows)),
    }


def _settings(file: Path) -> dict[str, Any] | None:
    try:
        return load_tables(file.parent)[0]
    except RunError:  # not a run, or one that is being made
        return None


def _time_of(file: Path) -> float | None:
    known = mark(file)
    return None if known is None else known[2] / 1e9


def _evaluation(found: Any) -> dict[str, Any] | None:
    if not isinstance(found, dict):
        return None
    return {key: number(found.get(key)) for key in ("mean", "std", "episodes")}


def _missing_is_usual(settings: dict[str, Any]) -> int:
    """Rounds that an agent may miss in a row before it is called silent: not all are asked, or answer, in every one."""
    share = number(settings.get("participation", 1)) or 1.0
    for name in ("dropout", "stragglers"):
        share *= 1 - (number(settings.get(name, 0)) or 0)
    return 0 if share >= 1 else round(3 / max(share, 0.01))


def members_of(document: dict[str, Any], round_: int, missing_is_usual: int = 0) -> list[dict[str, Any]] | None:
    """The agents of a federation over the network, each with a word; None where nobody notes them.

    >>> members_of({"agents": [{"number": 0, "last_seen": 9.5, "round": 4, "refused": 3}]}, 7)[0]["word"]
    'refused'
    """
    listed = document.get("agents")
    if not isinstance(listed, list):
        return None
    members = []
    for agent in listed[:MOST_AGENTS]:
        if not isinstance(agent, dict):
            continue
        seen, refused = number(agent.get("last_seen")), number(agent.get("refused")) or 0
        answered = number(agent.get("round")) or 0
        word = _word(seen, round_ - answered, refused, missing_is_usual)
        about = {"number": number(agent.get("number")), "last_seen": seen, "round": answered, "refused": refused}
        members.append(about | {"word": word, "note": str(agent.get("note") or "")[:500]})
    return sorted(members, key=lambda member: member["number"] or 0)


def _word(seen: float | None, missed: float, refused: float, missing_is_usual: int) -> str:
    """Refused, if it was so at least as often as it has missed rounds: then it was refused in all of them."""
    if seen is not None and missed <= missing_is_usual:
        return "answering"
    if refused >= max(1, missed):
        return "refused"
    return "never" if seen is None else "silent"


class Watcher:
    """A run directory, a folder of them, or the folder of a federation. Safe to ask from several threads."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        if not os.path.isdir(root):  # unlike the methods of Path, these never raise
            what = "is not a folder" if os.path.exists(root) else "does not exist"
            raise RunError(f"{root} {what}; give a run directory, a folder of runs, or the folder of a federation.")
        self.root, self._clock = root, clock
        self.title = root.resolve().name or str(root)
        self._runs: dict[str, Watched] = {}
        self._lock = threading.Lock()

    def runs(self) -> dict[str, Any]:
        """All runs, those that are running first, then the newest."""
        with self._lock:
            held, now = locks.held(), self._clock()
            found = [(name, run, run.state(held, now)) for name, run in self._listing().items()]
            found.sort(key=lambda entry: (entry[2].word != "running", -entry[1].started, entry[0]))
            return {
                "title": self.title,
                "single": is_run(self.root),
                "there": os.path.isdir(self.root),
                "runs": [run.overview(name, state) for name, run, state in found],
            }

    def run(self, name: str) -> dict[str, Any] | None:
        """One of the runs that are listed; None if there is none of this name."""
        with self._lock:
            run = self._listing().get(name)
            return None if run is None else run.details(name, run.state(locks.held(), self._clock()))

    def _listing(self) -> dict[str, Watched]:
        """The runs there are now. What was read of them is kept while they are there."""
        paths = dict(find_runs(self.root))
        self._runs = {name: self._runs.get(name) or Watched(path) for name, path in paths.items()}
        return {name: run for name, run in self._runs.items() if run.settings is not None}
