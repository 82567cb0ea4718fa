"""A run that is part of a comparison or a sweep: it has its place, and is run only as far as needed."""

import dataclasses
import os
from pathlib import Path
from typing import Any, NamedTuple

from mfpo.errors import RunError
from mfpo.runs import directory, training
from mfpo.runs.settings import Settings
from mfpo.runs.training import Run


class Entry(NamedTuple):
    """One run: where it lies or will lie, and what it is."""

    path: Path
    settings: Settings
    config: Any


def check(entry: Entry) -> None:
    """What lies in an entry's place must be the beginning of its run."""
    if not _begun(entry):
        return
    settings, config = directory.read_config(entry.path)
    same = {name: getattr(settings, name) for name in ("devices", "processes", "rounds")}
    wanted = dataclasses.replace(entry.settings, **same)
    if (settings, config) != (wanted, entry.config):
        raise RunError(f"{entry.path} holds a run with other settings; give another --out, or remove it.")
    if settings.rounds > entry.settings.rounds:
        raise RunError(
            f"{entry.path} was trained for {settings.rounds} rounds, more than {entry.settings.rounds}; ask for at "
            "least as many, or give another --out."
        )


def run(entry: Entry, **watch: Any) -> Run:
    """The run of an entry: as it lies there, gone on with, or trained from the start. `watch` as in `train`."""
    if not _begun(entry):
        return training.train(entry.settings, entry.config, entry.path, **watch)
    if is_finished(entry):
        return training.open_run(entry.path)
    return training.resume(entry.path, entry.settings.rounds, **watch)


def _begun(entry: Entry) -> bool:
    return os.path.exists(entry.path / directory.CONFIG)  # unlike the method of Path, this never raises


def is_finished(entry: Entry) -> bool:
    """Whether nothing is left to do for an entry."""
    try:
        return training.open_run(entry.path).settings.rounds == entry.settings.rounds
    except RunError:
        return False
