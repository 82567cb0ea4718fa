"""What the server knows of its agents, for whoever looks at a run: agents.json in the run directory.

{"agents": [{"number": 0, "last_seen": 1760000000.0, "round": 7, "refused": 0, "note": "answered round 7."}]}

`last_seen` is the time of the last answer that was accepted (null without any), `round` its round, `refused` counts
what was not. It is written when a round is safe, so that a round that is repeated is not counted twice.
"""

import json
import time
from pathlib import Path
from typing import Any

from mfpo.runs import files

NAME = "agents.json"


class Roster:
    """A line per agent. One that was written before goes on; one that cannot be read begins anew."""

    def __init__(self, path: Path, agents: int) -> None:
        self._path = path
        self._lines = [_line(number, old) for number, old in zip(range(agents), _read(path, agents), strict=True)]

    def accepted(self, agent: int, round_number: int) -> None:
        """An answer of this round came, and can be used."""
        self._lines[agent] |= {"last_seen": time.time(), "round": round_number}
        self.note(agent, f"answered round {round_number}.")

    def refused(self, agent: int, sentence: str) -> None:
        """What this agent sent was not as it must be."""
        self._lines[agent]["refused"] += 1
        self.note(agent, sentence)

    def note(self, agent: int, sentence: str) -> None:
        """The last thing there is to say about an agent."""
        self._lines[agent]["note"] = sentence

    def write(self) -> None:
        """Put it on the disk."""
        files.replace(self._path, json.dumps({"agents": self._lines}, indent=2).encode())


def _line(number: int, old: dict[str, Any]) -> dict[str, Any]:
    blank = {"last_seen": None, "round": 0, "refused": 0, "note": "did not answer yet."}
    return {"number": number} | {name: old.get(name, value) for name, value in blank.items()}


def _read(path: Path, agents: int) -> list[dict[str, Any]]:
    try:
        lines: list[dict[str, Any]] = [dict(line) for line in json.loads(path.read_text("utf-8"))["agents"]]
    except (OSError, ValueError, KeyError, TypeError):
        lines = []
    return lines if len(lines) == agents else [{} for _ in range(agents)]
