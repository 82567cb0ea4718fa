import errno
import os
import signal
import threading
from pathlib import Path

import pytest

from mfpo.errors import RunError
from mfpo.runs import files


def fail(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_replace_leaves_the_old_file_and_nothing_else_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a"
    files.replace(file, b"old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError):
        files.replace(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_append_takes_back_what_it_could_not_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a"
    files.append(file, b"one\n")
    files.append(file, b"two\n")
    monkeypatch.setattr(os, "fsync", fail)  # the bytes are written, but do not reach the disk
    with pytest.raises(OSError):
        files.append(file, b"three\n")
    assert file.read_bytes() == b"one\ntwo\n"


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: real(descriptor, content[:2]))
    files.replace(tmp_path / "a", b"abcdefg")
    assert (tmp_path / "a").read_bytes() == b"abcdefg"


def test_a_full_disk_becomes_a_sentence_with_the_way_on() -> None:
    with pytest.raises(RunError) as caught, files.writing("metrics.jsonl", Path("my runs/1")):
        fail()
    assert "metrics.jsonl of my runs/1: the disk is full" in str(caught.value)
    assert "mfpo resume 'my runs/1'" in str(caught.value)


def test_the_way_on_names_the_program_as_a_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = tmp_path / "a b" / "mfpo", tmp_path / "else" / "mfpo"
    for program in (ours, other):
        program.parent.mkdir()
        program.touch(0o755)
    for path, called, expected in (
        (ours.parent, ours, "mfpo resume run"),
        (other.parent, ours, f"'{ours}' resume run"),  # the shell would start another one
        (tmp_path, ours, f"'{ours}' resume run"),
        (tmp_path, tmp_path / "__main__.py", "mfpo resume run"),
    ):
        monkeypatch.setenv("PATH", str(path))
        monkeypatch.setattr("sys.argv", [str(called)])
        assert files.resume_command(Path("run")) == expected


def test_ctrl_c_waits_for_the_block() -> None:
    done = False
    with pytest.raises(KeyboardInterrupt), files.uninterrupted():
        signal.raise_signal(signal.SIGINT)
        done = True
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_uninterrupted_leaves_other_threads_alone() -> None:
    ran: list[bool] = []

    def work() -> None:
        with files.uninterrupted():
            ran.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ran
