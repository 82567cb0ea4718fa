"""What is shown while a run is under way, on stderr; stdout is for results."""

import sys
from typing import Any, Protocol

from mfpo.cli.text import bytes_text, score_text, seconds_text

Row = dict[str, Any]


class Progress(Protocol):
    """A run's face: it has started, a round is done, something is worth a line, it is over."""

    def started(self, title: str) -> None:
        """The run directory is there and the first round is being compiled."""

    def row(self, row: Row) -> None:
        """A round is done and safe."""

    def notice(self, sentence: str) -> None:
        """A line for the user."""

    def close(self) -> None:
        """Leave the terminal as it was. May be called twice."""


def make_progress(rounds: int, quiet: bool) -> Progress:
    """A live bar on a terminal, a line per round elsewhere, only notices if `quiet`."""
    if quiet:
        return Quiet()
    return Bar(rounds) if sys.stderr.isatty() else Lines(rounds)


class Quiet:
    """Notices only."""

    def started(self, title: str) -> None:
        """Nothing."""

    def row(self, row: Row) -> None:
        """Nothing."""

    def notice(self, sentence: str) -> None:
        """A line on stderr."""
        _print(f"mfpo: {sentence}")

    def close(self) -> None:
        """Nothing."""


class Lines(Quiet):
    """One line per round, for logs and pipes."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def started(self, title: str) -> None:
        """The first line, before the slow part."""
        _print(f"{title}; compiling …")

    def row(self, row: Row) -> None:
        """round 3/30  return 312.4 ± 80.1  600 trajectories/agent  2.1 MB  0.4 s."""
        parts = (
            f"round {row['round']}/{self._rounds}",
            f"return {score_text(row['return_mean'], row['return_std'])}",
            f"{row['trajectories_per_agent']:,.0f} trajectories/agent",
            bytes_text(row["bytes_up"] + row["bytes_down"]),
            seconds_text(row["seconds"]),
        )
        _print("  ".join(parts))


class Bar:
    """A live bar with the latest numbers and the time left; it goes when the run is over."""

    def __init__(self, rounds: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

        columns = (
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        self._bar = Progress(*columns, console=Console(stderr=True, highlight=False), transient=True)
        self._task = self._bar.add_task("compiling …", total=rounds)
        self._bar.start()

    def started(self, title: str) -> None:
        """The title stays above the bar."""
        self._bar.console.print(title, markup=False)

    def row(self, row: Row) -> None:
        """Move the bar; a resumed run starts where it was."""
        score = f"return [bold]{score_text(row['return_mean'], row['return_std'])}[/]"
        text = f"{score}  {row['trajectories_per_agent']:,.0f} trajectories/agent"
        self._bar.update(self._task, completed=row["round"], description=text)

    def notice(self, sentence: str) -> None:
        """A line above the bar."""
        self._bar.console.print(f"mfpo: {sentence}", markup=False, soft_wrap=True)

    def close(self) -> None:
        """Take the bar away; the summary or an error follows."""
        self._bar.stop()


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
