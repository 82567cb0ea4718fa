"""Writing that either happens or does not: no reader, and no run killed at any moment, ever meets half a file."""

import contextlib
import errno
import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from mfpo.errors import RunError

TEMPORARY = ".tmp-"  # files with this prefix are never read, and are removed when a run is opened for writing


def replace(path: Path, *content: bytes | memoryview) -> None:
    """Give `path` this content in one step: the old file stays until the new one is safely on the disk."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        with temporary.open("wb") as file:
            _write(file.fileno(), *content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def append(path: Path, content: bytes) -> None:
    """Add to the end of a file. If that fails (a full disk), the file is as long as before."""
    with path.open("ab") as file:
        size = file.seek(0, os.SEEK_END)
        try:
            _write(file.fileno(), content)
        except BaseException:
            os.ftruncate(file.fileno(), size)
            raise


def _write(descriptor: int, *content: bytes | memoryview) -> None:
    """All of the bytes, onto the disk and not just into the system's memory: it must survive a loss of power too."""
    for part in content:
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Put a folder's list of names on the disk; a rename is only safe after this. Not every system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_temporary(folder: Path) -> None:
    """Remove what a killed process was writing."""
    for leftover in folder.glob(f"{TEMPORARY}*"):
        leftover.unlink(missing_ok=True)


def resume_command(run: Path) -> str:
    """What to type to go on with a run."""
    return f"{program()} resume {shlex.quote(str(run))}"


def program() -> str:
    """What to type for this program: `mfpo`, or the path it was called by if the shell would not find it."""
    called, found = Path(sys.argv[0]), shutil.which("mfpo")
    if called.name != "mfpo" or (found and Path(found).samefile(called)):
        return "mfpo"
    return shlex.quote(str(called))


def reason(error: OSError) -> str:
    """The system's words for an error, without the path it may repeat."""
    return "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error.strerror or error).lower()


@contextlib.contextmanager
def writing(what: str, run: Path) -> Iterator[None]:
    """Turn a failure to write into a sentence: what was lost (nothing) and how to go on."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"Could not write {what} of {run}: {reason(error)}. Everything up to the last complete checkpoint is safe; "
            f"put this right, then go on with: {resume_command(run)}"
        ) from error


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the block is done. Only the main thread can do this, and only there Ctrl-C ever arrives."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
    if pressed:
        signal.raise_signal(signal.SIGINT)  # now it means what it meant before
