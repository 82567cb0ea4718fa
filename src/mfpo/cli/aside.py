"""Standard output for scripts: with --json it holds one object, and nothing that an environment prints."""

import contextlib
import ctypes
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

_out: TextIO | None = None  # where the object goes while all else is aside


def tell(answer: Any) -> None:
    """Print the object."""
    print(json.dumps(answer), file=_out, flush=True)


@contextlib.contextmanager
def prints_aside(asked: bool, for_good: bool = False) -> Iterator[None]:
    """Within the block, if asked, what is printed goes to standard error; by libraries that are not Python's, too.

    `for_good`: what is printed after the block, when the program ends, as well.
    """
    global _out
    if not asked:
        yield
        return
    usual = sys.stdout
    usual.flush()
    standard = os.dup(1)
    _out = open(os.dup(1), "w") if _is_standard(usual) else usual  # noqa: SIM115
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        if not for_good:
            ctypes.CDLL(None).fflush(None)  # what C has not written yet
            os.dup2(standard, 1)
            sys.stdout = usual
        os.close(standard)
        if _out is not usual:
            _out.close()
        _out = None


def _is_standard(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 1
    except OSError:  # a stream without a file, in tests
        return False
