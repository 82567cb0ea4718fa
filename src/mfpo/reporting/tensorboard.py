"""Metrics rows as TensorBoard event files.

metrics.jsonl is the truth; the event files are a copy of it. A resumed run may repeat a round that was written before a
crash, and events cannot be taken back. So the first row of a session writes the whole history anew: no step is doubled.
"""

from pathlib import Path
from typing import Any

from mfpo.errors import MissingExtra, RunError
from mfpo.reporting.records import Row, load_metrics
from mfpo.runs import files

FOLDER = "tensorboard"


def summary_writer() -> Any:
    """The class that writes event files, or the command that installs it."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise MissingExtra("--tensorboard", "tensorboard") from None
    return SummaryWriter


class EventFiles:
    """Call it with every row of a run, close it at the end; nothing is written before the first row."""

    def __init__(self, run: str | Path) -> None:
        self._make_writer = summary_writer()
        self._run = Path(run)
        self._writer: Any = None

    def __call__(self, row: Row) -> None:
        """Write a row; before the first one, the rows of the rounds before it."""
        try:
            if self._writer is None:
                earlier = [past for past in load_metrics(self._run) if past["round"] < row["round"]]
                self._writer = self._start_anew()
                for past in earlier:
                    self._write(past)
            self._write(row)
            self._writer.flush()
        except OSError as error:
            where, why = self._run / FOLDER, files.reason(error)
            raise RunError(f"The event files in {where} cannot be written: {why}; the run itself is safe.") from None

    def _start_anew(self) -> Any:
        folder = self._run / FOLDER
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        return self._make_writer(str(folder))

    def _write(self, row: Row) -> None:
        for name, value in row.items():
            if name != "round" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, row["round"])

    def close(self) -> None:
        """Finish the file; harmless if nothing was written."""
        if self._writer is not None:
            self._writer.close()
