"""metrics.jsonl: one line of numbers per round."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mfpo.errors import RunError
from mfpo.federation.logs import RoundLog, ended_returns
from mfpo.runs import files
from mfpo.runs.checkpoint import Progress

Row = dict[str, Any]
# columns of a row that are not an agent's to report
OWN = re.compile(
    r"round|env_steps|trajectories_per_agent|bytes_(up|down)|length_mean|answered|refused|(cpu_)?seconds"
    r"|(return|evaluation|server)_.*"
)


def row_of(progress: Progress, log: RoundLog, seconds: float, cpu_seconds: float) -> Row:
    """The line of a round: counts so far, then this round's episodes, learning, merge and cost."""
    row = {
        "round": progress.round,
        "env_steps": progress.env_steps,
        "trajectories_per_agent": progress.trajectories_per_agent,
        "bytes_up": progress.bytes_up,
        "bytes_down": progress.bytes_down,
        **_spread("return", ended_returns(log.returns)),
        "length_mean": _mean(log.lengths),
    }
    row |= {name: _mean(values) for name, values in log.learn.items()}
    row["answered"] = log.answered
    # the agents' and the server's view of one quantity may share its name; neither may hide the other
    row |= {f"server_{name}" if name in row else name: value for name, value in log.merge.items()}
    row |= {"seconds": seconds, "cpu_seconds": cpu_seconds}
    return _plain_row(row)


def judgement(returns: NDArray[np.float64]) -> Row:
    """What is added to a line if the policy was judged after the round."""
    return _plain_row(_spread("evaluation", returns))


def _spread(of: str, returns: NDArray[Any]) -> dict[str, Any]:
    mean, std = np.mean(returns, dtype=np.float64), np.std(returns, dtype=np.float64)
    return {f"{of}_mean": mean, f"{of}_std": std, f"{of}_min": np.min(returns), f"{of}_max": np.max(returns)}


def _mean(values: NDArray[Any]) -> Any:
    """NaN if nobody told any."""
    return np.mean(values, dtype=np.float64) if values.size else np.nan


def _plain_row(row: dict[str, Any]) -> Row:
    return {name: plain(value) for name, value in row.items()}


def plain(value: Any) -> int | float | None:
    """A number JSON can hold: JSON has no word for infinite or undefined, so these become null."""
    if isinstance(value, int | np.integer):
        return int(value)
    return float(value) if math.isfinite(value) else None


def append(path: Path, row: Row) -> None:
    """Add a round's line."""
    files.append(path, json.dumps(row, allow_nan=False).encode() + b"\n")


def read(path: Path) -> list[Row]:
    """The rows of a run. A line a killed process left unfinished is not one of them."""
    return [row for row, _ in _rows(path)]


def cut(path: Path, last_round: int) -> list[Row]:
    """Drop unfinished lines and lines beyond a round, so that the file agrees with a checkpoint; what remains."""
    kept = [(row, line) for row, line in _rows(path) if row["round"] <= last_round]
    content = b"".join(line + b"\n" for _, line in kept)
    if path.exists() and path.read_bytes() != content:
        files.replace(path, content)
    return [row for row, _ in kept]


def _rows(path: Path) -> list[tuple[Row, bytes]]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"Cannot read {path}: {files.reason(error)}.") from error
    rows: list[tuple[Row, bytes]] = []
    for line in content.split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("round"), int):
            rows.append((row, line))
    return rows
