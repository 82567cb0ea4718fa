"""Numbers as people read them, on the command line, in tables and in figures."""

NOTHING = 1e-9  # what is smaller is shown as zero


def decimals(*values: float) -> int:
    """How many let the largest of the numbers show three digits, and at least one.

    >>> decimals(500.0, 3.1), decimals(9.996), decimals(9.35, -0.7), decimals(0.034, 0.18)
    (1, 1, 2, 3)
    """
    largest = max(map(abs, values))
    if not NOTHING < largest < float("inf"):
        return 1
    exponent = int(f"{largest:.2e}".partition("e")[2])  # of the number as it is shown: 9.996 is 10.0
    return max(1, 2 - exponent)


def score_text(mean: float | None, std: float | None) -> str:
    """A mean with its spread; None stands for one that is not finite, or of no episode at all.

    >>> score_text(312.44, 80.1), score_text(0.034, 0.181), score_text(None, None)
    ('312.4 ± 80.1', '0.034 ± 0.181', '–')
    """
    if mean is None or std is None:
        return "–"
    digits = decimals(mean, std)
    return f"{mean:.{digits}f} ± {std:.{digits}f}"


def return_text(value: float | None) -> str:
    """The return of one episode; None as for `score_text`.

    >>> return_text(312.44), return_text(-0.5), return_text(None)
    ('312.4', '-0.500', '–')
    """
    return "–" if value is None else f"{value:.{decimals(value)}f}"


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
