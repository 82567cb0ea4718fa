"""`mfpo sweep`: many runs with one face."""

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mfpo.cli.aside import tell
from mfpo.cli.commands import REPEAT
from mfpo.cli.flags import Several, reader
from mfpo.cli.interrupts import interrupts
from mfpo.cli.progress import make_sweep_progress
from mfpo.cli.text import seconds_text
from mfpo.config import flag
from mfpo.errors import ConfigError, MissingExtra
from mfpo.reporting.numbers import score_text
from mfpo.runs import machine

if TYPE_CHECKING:
    from mfpo.reporting.tensorboard import EventFiles
    from mfpo.runs.entries import Entry
    from mfpo.runs.sweep import Sweep
    from mfpo.runs.training import Run


def fill(parser: argparse.ArgumentParser, output: Any) -> None:
    """The options beside those of `mfpo train`."""
    parser.add_argument(
        "--seeds", type=reader(int), default=10, metavar="N", help="runs per value: seeds 0 .. N-1 (10)"
    )
    parser.add_argument(
        "--threshold", type=reader(float), metavar="X", help="training return whose cost is reported (CartPole-v1: 475)"
    )
    output.add_argument("--out", metavar="DIR", help="folder of the sweep (runs/sweep-ENV-ALGORITHM-OPTION)")
    parser.set_defaults(command=sweep)


def sweep(args: argparse.Namespace) -> int:
    """`mfpo sweep ENV`."""
    from mfpo.runs import sweep as sweeps

    planned = _plan(args)
    if args.tensorboard:
        from mfpo.reporting import tensorboard

        tensorboard.require()  # if it is missing, say so before training
    machine.prepare(planned.entries[0].settings.env)
    watch = _Watch(planned, args.quiet, args.tensorboard)
    try:
        with interrupts() as signals:
            listener = sweeps.Watch(watch.started, watch.row, watch.finished, watch.progress.notice)

            def row(entry: "Entry", row: dict[str, Any]) -> None:
                watch.row(entry, row)
                signals.check()

            try:
                sweeps.run(planned, listener._replace(row=row))
            except KeyboardInterrupt:
                watch.close()
                print(REPEAT, file=sys.stderr)
                return signals.exit_code
    finally:
        watch.close()
    threshold = sweeps.THRESHOLDS.get(args.env) if args.threshold is None else args.threshold
    return _report(args, planned, threshold)


def _plan(args: argparse.Namespace) -> "Sweep":
    from mfpo.runs import sweep as sweeps

    given = vars(args)
    of_run, of_algorithm = (
        {name: given[name] for name in args.fields[kind] if name in given} for kind in ("settings", "config")
    )
    lists = [name for name, value in {**of_run, **of_algorithm}.items() if isinstance(value, Several)]
    if not lists:
        raise ConfigError("Nothing is swept; give one option that is a number several values, as in --agents 1,2,5.")
    if len(lists) > 1:
        both = f"{flag(lists[0])} and {flag(lists[1])}"
        raise ConfigError(f"{both} both have several values; sweep one option at a time.")
    option = lists[0]
    values = of_run.pop(option, None) or of_algorithm.pop(option)
    return sweeps.plan(option, values, args.seeds, args.out and Path(args.out), of_run, of_algorithm)


class _Watch:
    """What the runs call back, from several threads: the bar, the event files, a line for each that is done."""

    def __init__(self, planned: "Sweep", quiet: bool, tensorboard: bool) -> None:
        from mfpo.runs.entries import is_finished
        from mfpo.runs.training import rounds_done

        self._planned, self._quiet, self._tensorboard = planned, quiet, tensorboard
        self._events: dict[Path, EventFiles] = {}
        missing = [entry for entry in planned.entries if not is_finished(entry)]
        self._work = sum(_cost(entry) * (entry.settings.rounds - rounds_done(entry.path)) for entry in missing)
        self._runs, self._over = len(planned.entries), len(planned.entries) - len(missing)
        self._done, self._start = 0.0, time.perf_counter()
        self.progress = make_sweep_progress(self._work, quiet)
        values = ", ".join(f"{value:g}" for value in planned.points)
        seeds = len(next(iter(planned.points.values())))
        each = "1 seed" if seeds == 1 else f"{seeds} seeds"
        self._tell(f"{planned.option.replace('_', ' ')} {values}, {each} each: {planned.path}")

    def started(self, entry: "Entry") -> None:
        from mfpo.reporting.tensorboard import EventFiles

        if self._tensorboard:
            self._events[entry.path] = EventFiles(entry.path)

    def row(self, entry: "Entry", row: dict[str, Any]) -> None:
        self._done += _cost(entry)
        score = score_text(row["return_mean"], row["return_std"])
        where = f"{entry.path.parent.name}, seed {entry.settings.seed}, round {row['round']}/{entry.settings.rounds}"
        self.progress.advance(_cost(entry), f"{where}, return [bold]{score}[/]")
        if self._tensorboard:
            self._events[entry.path](row)

    def finished(self, entry: "Entry", run: "Run") -> None:
        self._over += 1
        evaluation = run.summary["evaluation"]
        passed = time.perf_counter() - self._start
        left = passed * (self._work - self._done) / self._done if self._done else 0.0
        left_text = f"; about {seconds_text(left)} left" if self._over < self._runs else ""
        score = score_text(evaluation["mean"], evaluation["std"])
        self._tell(f"{entry.path}: {score} ({self._over} of {self._runs} runs{left_text})")

    def _tell(self, sentence: str) -> None:
        if not self._quiet:
            self.progress.notice(sentence)

    def close(self) -> None:
        self.progress.close()
        for events in self._events.values():
            events.close()


def _cost(entry: "Entry") -> float:
    """What a round costs, roughly: its trajectories."""
    return float(
        entry.settings.agents * getattr(entry.config, "local_steps", 1) * getattr(entry.config, "trajectories", 1)
    )


def _report(args: argparse.Namespace, planned: "Sweep", threshold: float | None) -> int:
    """Table and figures. The numbers are there even if the package that draws is not."""
    from mfpo.reporting.sweep import load_points, save_figures, save_table, table_text

    points = load_points({value: [entry.path for entry in entries] for value, entries in planned.points.items()})
    rows = save_table(planned.option, points, planned.path, threshold)
    if args.json:
        numbers = {"path": str(planned.path), "option": planned.option, "threshold": threshold, "values": rows}
        tell(numbers)
    else:
        print(table_text(planned.option, rows))
    try:
        figures = save_figures(planned.option, points, planned.path, threshold)
    except MissingExtra as error:
        print(f"mfpo: {error}", file=sys.stderr)
        return 0
    if not args.json:
        print("\n".join(map(str, figures)))
    return 0
