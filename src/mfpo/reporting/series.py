"""The rows of a run, few enough to draw: neighbouring rounds become one point."""

from collections.abc import Callable, Sequence

from mfpo.reporting.following import Row

POINTS, SPARK = 400, 60  # of a curve, and of one in a list
RECENT = 5  # rounds that tell how fast it goes

Values = list[int | float | None]


def thin(rows: Sequence[Row], points: int = POINTS) -> list[list[Row]]:
    """Neighbours together, so that at most so many groups remain; what is left over belongs to the last of them.

    >>> [[row["round"] for row in group] for group in thin([{"round": t} for t in range(1, 8)], 4)]
    [[1, 2], [3, 4], [5, 6, 7]]
    """
    size = max(1, -(-len(rows) // points))
    starts = [size * group for group in range(len(rows) // size)]
    return [list(rows[start:end]) for start, end in zip(starts, [*starts[1:], len(rows)], strict=True)] if rows else []


def curve_of(groups: Sequence[Sequence[Row]]) -> dict[str, Values]:
    """A list of values per column; a column that no row has is empty. The band is the spread of a round's episodes."""
    lows = [[_shifted(row, -1) for row in group] for group in groups]
    highs = [[_shifted(row, +1) for row in group] for group in groups]
    return {
        "from": [group[0]["round"] for group in groups],
        "round": [group[-1]["round"] for group in groups],
        "mean": _column(groups, "return_mean", _average),
        "low": [_pooled(values, _average) for values in lows],
        "high": [_pooled(values, _average) for values in highs],
        "drift": _column(groups, "drift", _average),
        "answered": _column(groups, "answered", min),  # who was missing must not be hidden by who was there
        "rejected": _column(groups, "rejected", sum),
        "refused": _column(groups, "refused", sum),
    }


def recent(rows: Sequence[Row], name: str) -> list[float]:
    """What is known of the last few rounds."""
    return [row[name] for row in rows[-RECENT:] if row.get(name) is not None]


def total(rows: Sequence[Row], name: str) -> float | None:
    """The sum over all rounds; None if no round has it."""
    known = [row[name] for row in rows if row.get(name) is not None]
    return sum(known) if known else None


def _shifted(row: Row, sign: int) -> float | None:
    mean, std = row.get("return_mean"), row.get("return_std")
    return None if mean is None or std is None else mean + sign * std


def _column(groups: Sequence[Sequence[Row]], name: str, pool: Callable[[list[float]], float]) -> Values:
    if not any(name in row for group in groups for row in group):
        return []
    return [_pooled([row.get(name) for row in group], pool) for group in groups]


def _pooled(values: Sequence[float | None], pool: Callable[[list[float]], float]) -> int | float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    value = pool(known)
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _average(values: list[float]) -> float:
    return sum(values) / len(values)
