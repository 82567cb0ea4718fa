"""Several algorithms on one environment, each with several seeds: what is to be run, and where it lies.

A comparison is a folder with a run directory for every algorithm and seed. Asking for it again runs what is missing and
goes on with what is half done, so it can be interrupted at any moment and extended by algorithms, seeds or rounds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mfpo.errors import ConfigError
from mfpo.runs import directory, training
from mfpo.runs.entries import Entry, check
from mfpo.runs.settings import resolve


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
        check(entry)
    for entry in entries[: len(algorithms)]:
        training.assemble(entry.settings, entry.config)  # what is wrong with a setting is found before any runs
    return entries
