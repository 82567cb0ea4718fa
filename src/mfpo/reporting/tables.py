"""Tables as text."""

import unicodedata
from collections.abc import Sequence


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are aligned, so that it reads well in a terminal, too.

    >>> print(markdown(("K", "rounds"), [("10", "7")]))
    | K  | rounds |
    | -- | ------ |
    | 10 | 7      |
    """
    widths = [max(map(_width, column)) for column in zip(head, *lines, strict=True)]
    rule = tuple("-" * width for width in widths)
    return "\n".join(
        "| " + " | ".join(cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (head, rule, *lines)
    )


def _width(text: str) -> int:
    """The tilde of D̃ takes no room of its own."""
    return sum(not unicodedata.combining(character) for character in text)
