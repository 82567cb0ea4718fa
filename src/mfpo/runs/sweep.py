"""One number takes several values, each with several seeds: what is to be run, where it lies, and on which core.

A sweep is a folder with a run directory NAME=VALUE/seed-S for every value and seed. Asking for it again runs what is
missing and goes on with what is half done.

Where the environment is pure, all seeds of a setting share its compiled program and take turns on the JAX devices, one
device each: no seed waits for another, and each comes to the bits it has when it is trained alone on one device.
"""

import functools
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import jax

from mfpo import federation
from mfpo.config import field_types, flag
from mfpo.errors import ConfigError, Diverged
from mfpo.runs import directory, entries, training
from mfpo.runs.building import make_env
from mfpo.runs.entries import Entry
from mfpo.runs.metrics import Row
from mfpo.runs.settings import Settings, resolve
from mfpo.runs.training import Run
from mfpo.types import Algorithm, Env, PureEnv

THRESHOLDS = {"CartPole-v1": 475.0}  # where Gymnasium calls an environment solved
# Numbers that do not change what is learned, or are swept anyway.
IDLE = (
    "seed", "devices", "processes",
    "evaluation_episodes", "evaluation_every", "reference_every", "reference_trajectories",
)  # fmt: skip


class Sweep(NamedTuple):
    """Where it lies, the field that is swept, and the runs of each value in increasing order."""

    path: Path
    option: str
    points: dict[float, list[Entry]]

    @property
    def entries(self) -> list[Entry]:
        """All runs, value by value."""
        return [entry for point in self.points.values() for entry in point]


class Watch(NamedTuple):
    """Whom to tell; several threads may do so at once."""

    started: Callable[[Entry], object]
    row: Callable[[Entry, Row], object]
    finished: Callable[[Entry, Run], object]
    notice: Callable[[str], object]


def plan(
    option: str,
    values: Sequence[float],
    seeds: int,
    out: Path | None,
    settings_values: Mapping[str, Any],
    algorithm_values: Mapping[str, Any],
) -> Sweep:
    """All runs. Raises an error if a value makes no sense, or if there is a run of another setting in a place."""
    name = flag(option)
    if option in IDLE:
        raise ConfigError(f"{name} does not change what is learned; sweep another option, with several --seeds.")
    if seeds < 1:
        raise ConfigError(f"--seeds is {seeds}, but it must be at least 1.")
    if len(values) < 2:
        raise ConfigError(f"{name} has one value; give a sweep at least two, as in {name} {values[0]},{values[0] * 2}.")
    twice = [value for value in values if list(values).count(value) > 1]
    if twice:
        raise ConfigError(f"{name} names {twice[0]} twice; name each value once.")
    of_run = option in field_types(Settings)
    points: dict[float, list[Entry]] = {}
    place = out
    for value in sorted(values):
        swept = {option: value}
        for seed in range(seeds):
            asked = {**settings_values, **(swept if of_run else {}), "seed": seed}
            settings, config = resolve(asked, {**algorithm_values, **({} if of_run else swept)})
            place = place or _usual_place(settings, option)
            path = place / f"{name.removeprefix('--')}={value}" / f"seed-{seed}"
            points.setdefault(value, []).append(Entry(path, settings, config))
    assert place is not None  # there are values and seeds
    sweep = Sweep(place, option, points)
    for entry in sweep.entries:
        entries.check(entry)
    return sweep


def _usual_place(settings: Settings, option: str) -> Path:
    name = f"sweep-{settings.env}-{settings.algorithm}-{flag(option).removeprefix('--')}"
    return directory.HOME / name.replace("/", "_").replace(":", "_")


def run(sweep: Sweep, watch: Watch) -> None:
    """Train what is missing. A seed that diverges is told and left as it is; the others go on."""
    for point in sweep.points.values():
        training.assemble(point[0].settings, point[0].config)  # what is wrong with a setting is found before any runs
    missing = [entry for entry in sweep.entries if not entries.is_finished(entry)]
    first = sweep.entries[0].settings
    if first.engine == "inprocess" and isinstance(make_env(first), PureEnv):
        _side_by_side(missing, jax.devices()[: first.devices or None][: len(missing)], watch)
    else:
        for entry in missing:
            _run(entry, watch)


def _side_by_side(missing: list[Entry], devices: Sequence[jax.Device], watch: Watch) -> None:
    """A thread per device; each takes the next run when it is done with one."""
    free: queue.SimpleQueue[jax.Device] = queue.SimpleQueue()
    for device in devices:
        free.put(device)
    stop = threading.Event()

    def row(entry: Entry, row: Row) -> None:
        watch.row(entry, row)
        if stop.is_set():
            raise KeyboardInterrupt

    def work(entry: Entry) -> None:
        device = free.get()
        try:
            _run(entry, watch._replace(row=row), functools.partial(_engine_on, device, len(devices)))
        finally:
            free.put(device)

    if not missing:
        return
    with ThreadPoolExecutor(len(devices)) as pool:
        try:
            for done in as_completed([pool.submit(work, entry) for entry in missing]):
                done.result()
        except BaseException:  # of one run, or Ctrl-C: the others stop after the round they are in
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _engine_on(
    device: jax.Device, sharing: int, settings: Settings, config: Any, algorithm: Algorithm, env: Env
) -> federation.Engine:
    assert isinstance(env, PureEnv)
    engine = federation.make_engine_on(device, algorithm, env, settings.agents, settings.seed, settings.faults)
    return engine._replace(sharing=sharing)


def _run(entry: Entry, watch: Watch, make_engine: training.MakeEngine | None = None) -> None:
    try:
        run = entries.run(
            entry,
            callback=functools.partial(watch.row, entry),
            notice=watch.notice,
            started=lambda path: watch.started(entry),
            make_engine=make_engine,
        )
    except Diverged as error:
        watch.notice(f"{entry.path}: {error}")
    else:
        watch.finished(entry, run)
