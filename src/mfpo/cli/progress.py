"""What is shown while a run is under way, on stderr; stdout is for results."""

import sys
from typing import Any, Protocol

from mfpo.cli.text import judged_text, seconds_text
from mfpo.reporting.numbers import bytes_text, score_text

Row = dict[str, Any]


class Progress(Protocol):
    """A run's face: it has started, a round is done, something is worth a line, it is over."""

    def started(self, title: str) -> None:
        """The run directory is there and the first round is being compiled."""

    def row(self, row: Row) -> None:
        """A round is done and safe."""

    def advance(self, amount: float, text: str) -> None:
        """Of many runs, one has done this much more."""

    def notice(self, sentence: str) -> None:
        """A line for the user."""

    def close(self) -> None:
        """Leave the terminal as it was. May be called twice."""


def make_progress(rounds: int, quiet: bool) -> Progress:
    """A live bar on a terminal, a line per round elsewhere, only notices if `quiet`."""
    if quiet:
        return Quiet()
    return Bar(rounds) if sys.stderr.isatty() else Lines(rounds)


def make_sweep_progress(work: float, quiet: bool) -> Progress:
    """The same for many runs, which are `work` to do; only notices where there is no terminal."""
    return Bar(work, "{task.percentage:.0f} %", memory=600) if sys.stderr.isatty() and not quiet else Quiet()


class Quiet:
    """Notices only."""

    def started(self, title: str) -> None:
        """Nothing."""

    def row(self, row: Row) -> None:
        """Nothing."""

    def advance(self, amount: float, text: str) -> None:
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
            *([f"evaluation {judged}"] if (judged := judged_text(row)) else []),
            f"{row['trajectories_per_agent']:,.0f} trajectories/agent",
            bytes_text(row["bytes_up"] + row["bytes_down"]),
            seconds_text(row["seconds"]),
        )
        _print("  ".join(parts))


class Bar:
    """A live bar with the latest numbers and the time left; it goes when the run is over."""

    def __init__(
        self, total: float, counter: str = "round {task.completed:.0f}/{task.total:.0f}", memory: float = 30
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

        columns = (
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn(counter),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        console = Console(stderr=True, highlight=False)
        self._bar = Progress(*columns, console=console, transient=True, speed_estimate_period=memory)
        self._task = self._bar.add_task("compiling …", total=total)
        self._bar.start()
        self._judged = ""  # the last evaluation on the way

    def started(self, title: str) -> None:
        """The title stays above the bar."""
        self._bar.console.print(title, markup=False)

    def row(self, row: Row) -> None:
        """Move the bar; a resumed run starts where it was."""
        self._judged = judged_text(row) or self._judged
        score = f"return [bold]{score_text(row['return_mean'], row['return_std'])}[/]"
        score += f"  evaluation [bold]{self._judged}[/]" if self._judged else ""
        text = f"{score}  {row['trajectories_per_agent']:,.0f} trajectories/agent"
        self._bar.update(self._task, completed=row["round"], description=text)

    def advance(self, amount: float, text: str) -> None:
        """Move the bar on by what was done."""
        self._bar.update(self._task, advance=amount, description=text)

    def notice(self, sentence: str) -> None:
        """A line above the bar."""
        self._bar.console.print(f"mfpo: {sentence}", markup=False, soft_wrap=True)

    def close(self) -> None:
        """Take the bar away; the summary or an error follows."""
        self._bar.stop()


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
