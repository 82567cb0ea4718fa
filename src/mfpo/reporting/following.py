"""Files that somebody else is writing: read again only when they have changed, and of a log only what was added."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

T = TypeVar("T")
Row = dict[str, Any]
Mark = tuple[int, int, int] | None  # inode, size and time of change; None: there is no such file


def mark(file: Path) -> Mark:
    """Tells one state of a file from another."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


class Followed(Generic[T]):
    """What `read` makes of a file, made again when the file has changed."""

    def __init__(self, file: Path, read: Callable[[Path], T]) -> None:
        self._file, self._read = file, read
        self._known: tuple[Mark, T] | None = None

    def now(self) -> T:
        """What the file says now."""
        current = mark(self._file)
        if self._known is None or self._known[0] != current:
            self._known = current, self._read(self._file)
        return self._known[1]


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object; an empty one if the file is missing or not (yet) one."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def number(value: Any) -> int | float | None:
    """A number that a browser can read too; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # whole, and too large for a float
        return None


class FollowedRows:
    """The rows of a metrics.jsonl that grows, is cut back by a resume, or begins anew. Only numbers are kept."""

    def __init__(self, file: Path, names: tuple[str, ...]) -> None:
        self._file, self._names = file, names
        self._mark: Mark = None
        self._forget()

    def _forget(self) -> None:
        self._rows: list[Row] = []
        self._offset = 0  # up to here, whole lines were read
        self._last = b""  # the last of them, to recognise the file by

    def now(self) -> list[Row]:
        """All rows by now. A line still being written is not one of them; a damaged one is passed over."""
        current = mark(self._file)
        if current == self._mark:
            return self._rows
        try:
            with self._file.open("rb") as file:
                if not self._goes_on(file):
                    self._forget()
                file.seek(self._offset)
                whole, end, _ = file.read().rpartition(b"\n")
        except OSError:
            self._forget()
            self._mark = None
            return self._rows
        if end:
            lines = whole.split(b"\n")
            self._offset += len(whole) + 1
            self._last = lines[-1] + b"\n"
            self._add(lines)
        self._mark = current
        return self._rows

    def _goes_on(self, file: BinaryIO) -> bool:
        """Whether what was read is still there: if not, the file is another, or was cut."""
        file.seek(self._offset - len(self._last))
        return file.read(len(self._last)) == self._last

    def _add(self, lines: list[bytes]) -> None:
        for line in lines:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(row, dict) or not isinstance(row.get("round"), int):
                continue
            while self._rows and self._rows[-1]["round"] >= row["round"]:  # done again: the later one counts
                self._rows.pop()
            self._rows.append(
                {name: number(row[name]) for name in self._names if name in row} | {"round": row["round"]}
            )
