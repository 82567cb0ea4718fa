"""The working directory, which code of others may change: theirs while it runs, ours in between."""

import contextlib
import os
from types import TracebackType


class Place:
    """Code in this block finds the working directory as its last block left it; after the block, ours is back.

    A simulator that moves where its files lie would else take a run directory that was named relative to ours along.
    """

    def __init__(self) -> None:
        self._ours, self._theirs = "", ""

    def __enter__(self) -> None:
        with contextlib.suppress(OSError):  # one of them may have been removed
            self._ours = os.getcwd()
            if self._theirs:
                os.chdir(self._theirs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            now = os.getcwd()
            self._theirs = now if now != self._ours else ""
            if self._theirs:
                os.chdir(self._ours)
