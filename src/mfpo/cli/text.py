"""What lines on a terminal are made of; numbers that tables and figures show, too, are in `reporting.numbers`."""

from collections.abc import Mapping, Sequence
from typing import Any

from mfpo.reporting.numbers import score_text

BARS = "▁▂▃▄▅▆▇█"


def seconds_text(seconds: float) -> str:
    """Whole minutes and hours once there are any.

    >>> seconds_text(0.42), seconds_text(75), seconds_text(7384)
    ('0.4 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def judged_text(row: Mapping[str, Any]) -> str:
    """The score of the policy after a round, if it was judged then.

    >>> judged_text({"evaluation_mean": 12.0, "evaluation_std": 1.5}), judged_text({"round": 1})
    ('12.0 ± 1.5', '')
    """
    return score_text(row["evaluation_mean"], row["evaluation_std"]) if "evaluation_mean" in row else ""


def sparkline(values: Sequence[float | None], width: int = 60) -> str:
    """A curve in one line of text; what is not finite leaves a gap.

    >>> sparkline([0, 1, None, 7])
    '▁▂ █'
    """
    step = max(1, -(-len(values) // width))
    shown = values[step - 1 :: step]
    known = [value for value in shown if value is not None]
    if not known:
        return ""
    low, height = min(known), max(known) - min(known)
    scale = (len(BARS) - 1) / height if height else 0.0
    return "".join(" " if value is None else BARS[round((value - low) * scale)] for value in shown)
