"""What a comparison of algorithms came to: curves against four kinds of cost, and a table."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mfpo.reporting.curves import AXES, save_figure
from mfpo.reporting.numbers import bytes_text, decimals, score_text
from mfpo.reporting.records import Record, load_record
from mfpo.reporting.statistics import bootstrap_interval, iqm, mean, std
from mfpo.reporting.tables import markdown
from mfpo.runs import files

TABLE, NUMBERS = "comparison.md", "comparison.json"


def table_of(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """A row per algorithm, in the order given: scores over its finished runs, and what one of them cost on average.

    A score is the mean return of the final policy over fresh episodes. Intervals are 95% bootstrap intervals of the
    interquartile mean over the runs (Agarwal et al. 2021).
    """
    together: dict[str, list[Record]] = {}
    for record in map(load_record, paths):
        if record.summary:
            together.setdefault(record.settings["algorithm"], []).append(record)
    return [{"algorithm": name, **_row(records)} for name, records in together.items()]


def _row(records: list[Record]) -> dict[str, Any]:
    scores = np.array([record.summary["evaluation"]["mean"] for record in records], float)
    low, high = bootstrap_interval(scores, iqm)
    costs = ("rounds", "trajectories_per_agent", "env_steps", "bytes_up", "bytes_down", "cpu_seconds")
    return {
        "seeds": len(scores),
        "mean": float(mean(scores)),
        "std": float(std(scores)),
        "iqm": float(iqm(scores)),
        "interval": [float(low), float(high)],
        "scores": scores.tolist(),
        **{name: float(np.mean([record.summary[name] for record in records])) for name in costs},
    }


def table_text(rows: Sequence[dict[str, Any]]) -> str:
    """The table in Markdown; sent is what all agents sent and were sent."""
    head = ("algorithm", "seeds", "mean ± std", "IQM", "95 % interval", "rounds", "trajectories/agent", "steps", "sent")
    return markdown(head, [_line(row) for row in rows])


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    digits = decimals(row["mean"], row["std"])
    low, high = row["interval"]
    return (
        row["algorithm"],
        f"{row['seeds']}",
        score_text(row["mean"], row["std"]),
        f"{row['iqm']:.{digits}f}",
        f"{low:.{digits}f} .. {high:.{digits}f}",
        f"{row['rounds']:,.0f}",
        f"{row['trajectories_per_agent']:,.0f}",
        f"{row['env_steps']:,.0f}",
        bytes_text(row["bytes_up"] + row["bytes_down"]),
    )


def save_comparison(paths: Sequence[Path], out: Path) -> tuple[list[dict[str, Any]], list[Path]]:
    """Write the table and its numbers into `out`, then the curves; the rows of the table, and the figures."""
    rows = table_of(paths)
    with files.writing("the comparison", out):
        files.replace(out / TABLE, (table_text(rows) + "\n").encode())
        files.replace(out / NUMBERS, json.dumps(rows, indent=2, allow_nan=False).encode())
    names = list(dict.fromkeys(load_record(path).settings["algorithm"] for path in paths))
    return rows, [save_figure(paths, out / f"curves-{x}.png", x=x, labels=names) for x in AXES]
