"""Numbers as people read them."""

from collections.abc import Mapping, Sequence
from typing import Any

BARS = "▁▂▃▄▅▆▇█"


def bytes_text(count: float) -> str:
    """Decimal units, as networks count.

    >>> bytes_text(950), bytes_text(2_140_000)
    ('950 B', '2.1 MB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.95 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"


def seconds_text(seconds: float) -> str:
    """Whole minutes and hours once there are any.

    >>> seconds_text(0.42), seconds_text(75), seconds_text(7384)
    ('0.4 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def score_text(mean: float | None, std: float | None) -> str:
    """A mean with its spread; None stands for one that is not finite, or of no episode at all.

    >>> score_text(312.44, 80.1), score_text(None, None)
    ('312.4 ± 80.1', '–')
    """
    return "–" if mean is None or std is None else f"{mean:.1f} ± {std:.1f}"


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
