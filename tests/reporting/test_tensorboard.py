import errno
import json
import signal
import sys

import pytest

from mfpo.errors import MissingExtra, RunError
from mfpo.reporting.records import load_metrics
from mfpo.reporting.tensorboard import FOLDER, EventFiles


def steps_by_name(run):
    """Name of a scalar -> its steps in the order written, over all event files of the run."""
    from tensorboardX.proto.event_pb2 import Event

    steps: dict[str, list[int]] = {}
    for file in sorted((run / FOLDER).glob("events.out.tfevents.*")):
        data, at = file.read_bytes(), 0
        while at < len(data):  # a record is: length (8 bytes), its checksum (4), content, its checksum (4)
            length = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + length])
            at += 16 + length
            for value in event.summary.value:
                steps.setdefault(value.tag, []).append(event.step)
    return steps


def test_every_number_of_a_row_is_a_scalar_at_its_round(make_run):
    run = make_run(rounds=3)
    rows = load_metrics(run)
    events = EventFiles(run)
    for row in rows:
        events(row)
    events.close()
    steps = steps_by_name(run)
    assert steps.keys() == rows[0].keys() - {"round"}
    assert all(these == [1, 2, 3] for these in steps.values())


def test_a_resumed_run_has_no_step_twice_and_none_missing(make_run):
    run = make_run(rounds=5)
    rows = load_metrics(run)
    first = EventFiles(run)
    for row in rows[:4]:  # round 4 was shown, but its checkpoint never reached the disk
        first(row)
    first.close()
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:4]))
    second = EventFiles(run)
    for row in rows[3:]:
        second(row)
    second.close()
    assert steps_by_name(run)["return_mean"] == [1, 2, 3, 4, 5]


def test_numbers_that_were_not_finite_are_left_out(make_run):
    run = make_run(rounds=1)
    events = EventFiles(run)
    events(load_metrics(run)[0] | {"drift": None})
    events.close()
    assert "drift" not in steps_by_name(run)


def test_a_full_disk_is_reported_and_not_swallowed(make_run, monkeypatch):
    run = make_run(rounds=2)
    first, second = load_metrics(run)
    events = EventFiles(run)
    events(first)

    def full(self, event):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tensorboardX.event_file_writer.EventsWriter.write_event", full)
    with pytest.raises(RunError, match="cannot be written: the disk is full; the run is safe"):
        events(second)
    events.close()


def test_ctrl_c_while_writing_waits_for_the_row(make_run, monkeypatch):
    run = make_run(rounds=2)
    rows = load_metrics(run)
    events = EventFiles(run)
    write = events._write

    def press(row):
        signal.raise_signal(signal.SIGINT)
        write(row)

    monkeypatch.setattr(events, "_write", press)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            events(rows[0])
    finally:
        signal.signal(signal.SIGINT, before)
    events.close()
    assert steps_by_name(run)["return_mean"] == [1]


def test_nothing_is_written_without_a_row(make_run):
    run = make_run()
    EventFiles(run).close()
    assert not (run / FOLDER).exists()


def test_without_the_extra_the_install_command_is_given(make_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mfpo\[tensorboard\]'"):
        EventFiles(make_run())
