"""Standard output for scripts: with --json it holds one object, and nothing that an environment prints."""

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def prints_aside(asked: bool) -> Iterator[None]:
    """Within the block, if asked, what is printed goes to standard error; by libraries that are not Python's, too."""
    if not asked:
        yield
        return
    sys.stdout.flush()
    before = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(before, 1)
        os.close(before)
