"""The working directory, which code of others may change: theirs while it runs, ours in between."""

import contextlib
import os
from types import TracebackType


class Place:
    """Code in this block finds the working directory as the last block left it; after the block, ours is back.

    A simulator that moves where its files lie would else take a run directory that was named relative to ours along.
    If we have moved meanwhile, the block begins where we are.
    """

    def __init__(self) -> None:
        self._ours, self._theirs = "", ""

    def __enter__(self) -> None:
        before, self._ours = self._ours, _here()
        if self._theirs and before == self._ours:
            with contextlib.suppress(OSError):
                os.chdir(self._theirs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        here = _here()
        self._theirs = here if here != self._ours else ""
        if here != self._ours:
            with contextlib.suppress(OSError):
                os.chdir(self._ours)


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


elsewhere = Place()  # one for all: what a module does on import holds for its environments, and for drawing them
