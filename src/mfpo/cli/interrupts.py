"""Ctrl-C and a polite kill: both end a run as KeyboardInterrupt, at a moment when no file is half written."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Interrupts:
    """Remembers the signal that came, because JAX can swallow an exception raised inside one of its own callbacks."""

    def __init__(self) -> None:
        self.received = 0

    @property
    def exit_code(self) -> int:
        """What shells expect: 130 after Ctrl-C, 143 after a kill."""
        return 128 + (self.received or signal.SIGINT)

    def check(self) -> None:
        """Raise what was swallowed."""
        if self.received:
            raise KeyboardInterrupt

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
        if number == signal.SIGTERM and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.raise_signal(signal.SIGINT)  # `runs` holds this one back while it writes
        else:
            raise KeyboardInterrupt


@contextlib.contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Within the block, SIGINT and SIGTERM raise KeyboardInterrupt. A signal that was ignored stays ignored (nohup)."""
    state = Interrupts()
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, state._stop)
    try:
        yield state
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
