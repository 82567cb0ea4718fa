"""Several algorithms on one environment, each with several seeds: what is to be run, and where it lies.

A comparison is a folder with a run directory for every algorithm and seed. Asking for it again runs what is missing and
goes on with what is half done, so it can be interrupted at any moment and extended by algorithms, seeds or rounds.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mfpo.errors import ConfigError, RunError
from mfpo.runs import directory, training
from mfpo.runs.settings import Settings, resolve
from mfpo.runs.training import Run


class Entry(NamedTuple):
    """One run of a comparison."""

    path: Path
    settings: Settings
    config: Any


def plan(
    env: str, algorithms: Sequence[str], seeds: int, out: Path | None = None, values: Mapping[str, Any] | None = None
) -> list[Entry]:
    """All runs, seed by seed, so that a comparison that was interrupted compares what it has fairly.

    `values` are settings all of them share. Raises an error if there is a run of another setting in a place.
    """
    if seeds < 1:
        raise ConfigError(f"--seeds is {seeds}, but it must be at least 1.")
    if not algorithms:
        raise ConfigError("--algorithms names none; give some of `mfpo list`, as in mfpo,fedpg_br.")
    twice = sorted(name for name in set(algorithms) if list(algorithms).count(name) > 1)
    if twice:
        raise ConfigError(f"--algorithms names {twice[0]} twice; name each once.")
    place = out or directory.HOME / f"compare-{env}".replace("/", "_").replace(":", "_")
    entries = []
    for seed in range(seeds):
        for name in algorithms:
            settings, config = resolve({"env": env, **(values or {}), "algorithm": name, "seed": seed}, {})
            entries.append(Entry(place / f"{name}-seed{seed}", settings, config))
    for entry in entries:
        _check(entry)
    return entries


def _check(entry: Entry) -> None:
    """What lies in an entry's place must be the beginning of its run."""
    if not (entry.path / directory.CONFIG).exists():
        return
    settings, config = directory.read_config(entry.path)
    wanted = dataclasses.replace(entry.settings, devices=settings.devices, rounds=settings.rounds)
    if (settings, config) != (wanted, entry.config):
        raise RunError(f"{entry.path} holds a run with other settings; give another --out, or remove it.")
    if settings.rounds > entry.settings.rounds:
        raise RunError(
            f"{entry.path} was trained for {settings.rounds} rounds, more than {entry.settings.rounds}; ask for at "
            "least as many, or give another --out."
        )


def run(entry: Entry, **watch: Any) -> Run:
    """The run of an entry: as it lies there, gone on with, or trained from the start. `watch` as in `train`."""
    if not (entry.path / directory.CONFIG).exists():
        return training.train(entry.settings, entry.config, entry.path, **watch)
    if is_finished(entry):
        return training.open_run(entry.path)
    return training.resume(entry.path, entry.settings.rounds, **watch)


def is_finished(entry: Entry) -> bool:
    """Whether nothing is left to do for an entry."""
    try:
        return training.open_run(entry.path).settings.rounds == entry.settings.rounds
    except RunError:
        return False
