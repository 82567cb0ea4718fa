"""Which folders are runs, and which hold some."""

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

DEPTH, MOST_FOLDERS = 3, 5000  # how far below the given folder runs are looked for, and in how many places


def is_run(path: Path) -> bool:
    """Whether this is a run directory, by the look of it."""
    return os.path.isfile(path / "config.toml")  # unlike the method of Path, this never raises


def find_runs(root: Path) -> Iterator[tuple[str, Path]]:
    """(name, folder) of all that may be runs. Links are not followed: what they lead to has a name of its own."""
    if is_run(root):
        yield root.resolve().name, root
        return
    base = root / "runs" if os.path.isfile(root / "federation.toml") else root
    folders = [base]
    for _ in range(DEPTH):
        below = list(itertools.islice(itertools.chain.from_iterable(map(_folders, folders)), MOST_FOLDERS))
        yield from ((run.relative_to(base).as_posix(), run) for run in below if is_run(run))
        folders = [folder for folder in below if not is_run(folder)]


def _folders(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            named = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [parent / name for name in sorted(named) if not name.startswith(".")]


def runs_among(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """What to read as runs, and what to leave out: folders of `mfpo compare` and `mfpo sweep`, which `runs/*` has too.

    What is neither is read as a run, and so are all if there is nothing else: whoever reads them says what is wrong.
    """
    left_out = [path for path in paths if _is_of_several(Path(path))]
    runs = [path for path in paths if path not in left_out]
    return (runs, left_out) if runs else (list(paths), [])


def _is_of_several(path: Path) -> bool:
    """Whether this is no run but holds runs, or what was made of them."""
    from mfpo.reporting import comparison, sweep  # they need NumPy, which a list of runs does not

    if is_run(path):
        return False
    tables = (comparison.NUMBERS, sweep.NUMBERS)
    return any(os.path.isfile(path / name) for name in tables) or any(find_runs(path))
