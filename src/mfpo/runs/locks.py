"""Which folders are locked, without locking any: whoever only looks must not keep a training from starting."""

import os
from pathlib import Path

TABLE = Path("/proc/locks")  # of Linux; elsewhere nobody can tell


def held(table: Path = TABLE) -> frozenset[tuple[int, int]]:
    """(device, inode) of everything that a process holds a lock on, as far as the system says.

    What is not in it may be locked all the same: by a process of another container, on another machine, or on a file
    system that counts its files differently.
    """
    try:
        lines = table.read_text("ascii").splitlines()
    except (OSError, ValueError):
        return frozenset()
    return frozenset(place for line in lines if (place := _place(line.split())) is not None)


def _place(words: list[str]) -> tuple[int, int] | None:
    """Of a line such as `1: FLOCK  ADVISORY  WRITE 1117 fe:00:2320197 0 EOF`; who still waits (`->`) holds nothing."""
    if len(words) < 6 or words[1] != "FLOCK" or words[3] != "WRITE":
        return None
    try:
        major, minor, inode = words[5].split(":")
        return os.makedev(int(major, 16), int(minor, 16)), int(inode)
    except ValueError:
        return None
