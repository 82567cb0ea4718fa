"""Metrics rows as TensorBoard event files.

metrics.jsonl is the truth; the event files are a copy of it. A resumed run may repeat a round that was written before a
crash, and events cannot be taken back. So the first row of a session writes the whole history anew: no step is doubled.
"""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mfpo.errors import MissingExtra, RunError
from mfpo.reporting.records import Row, load_metrics
from mfpo.runs import files

FOLDER = "tensorboard"


def require() -> SimpleNamespace:
    """What is needed of tensorboardX, or the command that installs it.

    Its usual SummaryWriter hands events to a thread: a full disk goes unnoticed there, and Ctrl-C can leave it waiting
    for ever. The writer below it does the same work in the open.
    """
    try:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary
    except ImportError:
        raise MissingExtra("--tensorboard", "tensorboard") from None
    return SimpleNamespace(EventsWriter=EventsWriter, Event=Event, Summary=Summary)


class EventFiles:
    """Call it with every row of a run, close it at the end; nothing is written before the first row."""

    def __init__(self, run: str | Path) -> None:
        self._package = require()
        self._folder = Path(run) / FOLDER
        self._writer: Any = None

    def __call__(self, row: Row) -> None:
        """Write a row; before the first one, the rows of the rounds before it."""
        try:
            with files.uninterrupted():
                if self._writer is None:
                    self._start_anew(row["round"])
                self._write(row)
                self._writer.flush()
        except OSError as error:
            why = files.reason(error)
            raise RunError(f"The event files in {self._folder} cannot be written: {why}; the run is safe.") from None

    def _start_anew(self, first_round: int) -> None:
        self._folder.mkdir(exist_ok=True)
        for old in self._folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = self._package.EventsWriter(str(self._folder / "events"))
        for row in load_metrics(self._folder.parent):
            if row["round"] < first_round:
                self._write(row)

    def _write(self, row: Row) -> None:
        value = self._package.Summary.Value
        numbers = {name: number for name, number in row.items() if name != "round" and isinstance(number, int | float)}
        summary = self._package.Summary(value=[value(tag=name, simple_value=n) for name, n in numbers.items()])
        self._writer.write_event(self._package.Event(wall_time=time.time(), step=row["round"], summary=summary))

    def close(self) -> None:
        """Finish the file; harmless if nothing was written, or if it was closed before."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
