"""What a sweep came to: curves for every value, the cost of reaching a score against the value, and a table.

A seed that never reached the score is never left out. It counts as having needed more than all its rounds: the median
takes it as infinite, and the mean with all the rounds there were, so that such a mean is a lower bound and says so.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mfpo.reporting.curves import COLOURS, FAINT, STYLE, Group, blank, figure_of, save
from mfpo.reporting.numbers import decimals
from mfpo.reporting.records import Record, load_record
from mfpo.reporting.statistics import bootstrap_interval, mean
from mfpo.reporting.tables import markdown
from mfpo.runs import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TABLE, NUMBERS = "sweep.md", "sweep.json"
COSTS = {  # name -> field of a row, label of an axis, head of a column
    "rounds": ("round", "communication rounds", "rounds"),
    "trajectories": ("trajectories_per_agent", "trajectories per agent", "trajectories/agent"),
}
Points = Mapping[float, Sequence[Record]]
Row = dict[str, Any]


def rows_of(points: Points, threshold: float | None) -> list[Row]:
    """A row per value: its seeds, how many reached the threshold and at what cost, and the final policies' scores."""
    return [{"value": value, **_row(records, threshold)} for value, records in points.items()]


def _row(records: Sequence[Record], threshold: float | None) -> Row:
    scores = [record.summary["evaluation"]["mean"] for record in records if record.summary]
    row: Row = {"seeds": len(records), "finished": len(scores), "score": _statistics(scores), "scores": scores}
    if threshold is not None:
        for name, (field, _, _) in COSTS.items():
            each = [cost_to_reach(record, threshold, field) for record in records]
            limits = [_limit(record, field) for record in records]
            row["reached"] = sum(cost is not None for cost in each)
            row[name] = _costs(each, limits) | {"each": each}
    return row


def cost_to_reach(record: Record, threshold: float, field: str) -> float | None:
    """The cost of a run up to the first round whose training episodes return this much on average; None: never."""
    reached = (row for row in record.rows if row["return_mean"] is not None and row["return_mean"] >= threshold)
    first = next(reached, None)
    return None if first is None else float(first[field])


def _limit(record: Record, field: str) -> float:
    """The cost of all rounds of a run; one that ended early is charged for those it missed, too."""
    done = len(record.rows)
    return float(record.rows[-1][field] / done * record.settings["rounds"]) if done else np.nan


def _costs(each: Sequence[float | None], limits: Sequence[float]) -> Row:
    known = np.nanmax(limits) if not np.all(np.isnan(limits)) else np.nan
    paid = [known if np.isnan(limit) else limit for limit in limits]
    counted = [limit if cost is None else cost for cost, limit in zip(each, paid, strict=True)]
    middle = float(np.median([np.inf if cost is None else cost for cost in each]))
    return {
        "median": middle if np.isfinite(middle) else None,
        **_statistics(counted),
        "at_least": any(cost is None for cost in each),  # whether the mean is a lower bound
    }


def _statistics(values: Sequence[float]) -> Row:
    """The mean and its 95% bootstrap interval."""
    if not values or not np.all(np.isfinite(values)):
        return {"mean": None, "interval": None}
    low, high = bootstrap_interval(values)
    return {"mean": float(mean(values)), "interval": [float(low), float(high)]}


def table_text(option: str, rows: Sequence[Row]) -> str:
    """The table in Markdown."""
    head = [option.replace("_", " "), "seeds", "score"]
    if "reached" in rows[0]:
        head += ["reached"] + [f"{name}, {what}" for _, _, name in COSTS.values() for what in ("median", "mean")]
    return markdown(head, [_line(row) for row in rows])


def _line(row: Row) -> list[str]:
    finished = "" if row["finished"] == row["seeds"] else f" ({row['finished']} finished)"
    cells = [f"{row['value']:,g}", f"{row['seeds']}{finished}", _cell(row["score"])]
    if "reached" in row:
        cells.append(f"{row['reached']} of {row['seeds']}")
        for name, digits in (("rounds", 1), ("trajectories", 0)):
            middle = row[name]["median"]
            cells += ["not reached" if middle is None else f"{middle:,.{digits}f}", _cell(row[name], digits)]
    return cells


def _cell(values: Row, digits: int | None = None) -> str:
    """A mean and its interval, with as many decimals as its size asks for, or as it is told."""
    if values["mean"] is None:
        return "–"
    low, high = values["interval"]
    digits = decimals(values["mean"], low, high) if digits is None else digits
    bound = "≥ " if values.get("at_least") else ""
    return f"{bound}{values['mean']:,.{digits}f} ({low:,.{digits}f} .. {high:,.{digits}f})"


def load_points(paths: Mapping[float, Sequence[Path]]) -> dict[float, list[Record]]:
    """The runs there are, by value; a run that has not begun has no record."""
    begun = {value: [path for path in of if (path / "config.toml").exists()] for value, of in paths.items()}
    return {value: [load_record(path) for path in of] for value, of in begun.items() if of}


def save_table(option: str, points: Points, out: Path, threshold: float | None) -> list[Row]:
    """Write the table and its numbers into `out`; its rows."""
    rows = rows_of(points, threshold)
    numbers = {"option": option, "threshold": threshold, "values": rows}
    with files.writing("the tables", out):
        files.replace(out / TABLE, (table_text(option, rows) + "\n").encode())
        files.replace(out / NUMBERS, json.dumps(numbers, indent=2, allow_nan=False).encode())
    return rows


def save_figures(option: str, points: Points, out: Path, threshold: float | None) -> list[Path]:
    """Draw curves, and the costs of a threshold if there is one, into `out`."""
    name = option.replace("_", " ")
    groups = [_group(f"{name} {value:g}", records) for value, records in points.items() if any(r.rows for r in records)]
    if not groups:
        return []
    figures = [
        save(functools.partial(curves_figure, groups, x, threshold), out / f"curves-{x}.png")
        for x in ("rounds", "trajectories")
    ]
    if threshold is not None:
        settings = groups[0].records[0].settings
        title = f"{settings['env']} · {settings['algorithm']} · {name}"
        draw = functools.partial(threshold_figure, option, rows_of(points, threshold), threshold, title)
        figures.append(save(draw, out / "threshold.png"))
    return figures


def _group(label: str, records: Sequence[Record]) -> Group:
    """The runs to draw: where some diverged, those that did not, and a label that says so."""
    whole = [record for record in records if record.summary]
    if not whole or len(whole) == len(records):
        return Group(label, [record for record in records if record.rows])
    return Group(f"{label} ({len(records) - len(whole)} of {len(records)} diverged)", whole)


def curves_figure(groups: list[Group], x: str, threshold: float | None) -> "Figure":
    """Training return against rounds or trajectories; a logarithmic axis where the values' ends lie far apart."""
    picture = figure_of(groups, x, threshold, ordered=True)
    ends = [group.records[0].rows[-1][COSTS[x][0]] for group in groups]
    if max(ends) > 5 * min(ends):
        from matplotlib.ticker import StrMethodFormatter

        axes = picture.axes[0]
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    return picture


def threshold_figure(option: str, rows: Sequence[Row], threshold: float, title: str) -> "Figure":
    """Rounds, and trajectories per agent, until training returns the threshold, against the swept value."""
    matplotlib, picture = blank(9.6, 4.3)
    with matplotlib.rc_context(STYLE):
        for axes, (name, (_, label, _)) in zip(picture.subplots(1, 2), COSTS.items(), strict=True):
            _draw(axes, rows, name, ideal=option == "agents")
            _decorate(axes, rows, option, name)
            axes.set_ylabel(label)
        left = picture.axes[0]
        left.legend(loc="best", fontsize=9)
        left.set_title(title, loc="left", fontweight="bold", fontsize=12, pad=22)
        caption = f"until training episodes return {threshold:g} on average; mean over seeds, 95% bootstrap interval"
        above: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": 8.5}
        left.annotate(caption, (0, 1), (0, 7), **above, color=FAINT).set_in_layout(False)
    return picture


def _draw(axes: "Axes", rows: Sequence[Row], name: str, ideal: bool) -> None:
    drawn = [row for row in rows if row[name]["mean"] is not None]
    if not drawn:
        return
    x = np.array([row["value"] for row in drawn], float)
    y = np.array([row[name]["mean"] for row in drawn])
    low, high = np.array([row[name]["interval"] for row in drawn]).T
    every = np.array([not row[name]["at_least"] for row in drawn])
    blue, orange = COLOURS[0], COLOURS[1]
    for row in drawn:
        seeds = [cost for cost in row[name]["each"] if cost is not None]
        axes.plot([row["value"]] * len(seeds), seeds, ".", color=blue, alpha=0.25, ms=7, mew=0, label="_seeds")
    if ideal:
        known = int(np.argmax(every))  # the first that is no lower bound; without any, the first
        line = y[known] * x[known] / x
        axes.plot(x, line, color=FAINT, linestyle=(0, (4, 3)), linewidth=1.2, label="ideal, 1/N", zorder=1)
    axes.plot(x, y, color=blue, linewidth=2, label="_line")
    bars: dict[str, Any] = {"linestyle": "none", "linewidth": 1.4, "capsize": 3, "ms": 5.5, "marker": "o", "mew": 1.6}
    for which, colour, face, label in (
        (every, blue, blue, "all seeds reach it"),
        (~every, orange, "white", "lower bound: some seeds never do"),
    ):
        if which.any():
            errors = [(y - low)[which], (high - y)[which]]
            axes.errorbar(x[which], y[which], errors, color=colour, mfc=face, mec=colour, label=label, zorder=4, **bars)
    for row in drawn:
        missing = row["seeds"] - row["reached"]
        if missing:
            place: dict[str, Any] = {"xytext": (0, 9), "textcoords": "offset points", "ha": "center", "fontsize": 8}
            axes.annotate(
                f"{missing} of {row['seeds']}\nnever", (row["value"], row[name]["interval"][1]), **place, color=orange
            )


def _decorate(axes: "Axes", rows: Sequence[Row], option: str, name: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, StrMethodFormatter

    values = [row["value"] for row in rows]
    axes.set_xlabel(option.replace("_", " "))
    axes.margins(0.08, 0.16)
    if option == "agents" or (min(values) > 0 and max(values) >= 8 * min(values)):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
        lowest = min(
            (min((c for c in row[name]["each"] if c is not None), default=np.inf) for row in rows), default=np.inf
        )
        if np.isfinite(lowest):
            axes.set_ylim(bottom=max(axes.get_ylim()[0], 0.6 * lowest))  # an ideal line may leave below
    axes.set_xticks(values, [f"{value:,g}" for value in values])
