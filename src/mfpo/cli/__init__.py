"""The command line: parse, call, print. JAX is imported only by the commands that need it."""

import contextlib
import io
import os
import sys
from collections.abc import Sequence

from mfpo.cli.aside import prints_aside
from mfpo.cli.parser import parse
from mfpo.errors import MfpoError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. 0: done, 2: a sentence on stderr says what to change, 130, 141, 143: stopped from outside."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "±" must not stop a training run
    try:
        try:
            args = parse(list(sys.argv[1:] if argv is None else argv))
        except SystemExit as done:  # --help and --version end here
            return done.code if isinstance(done.code, int) else 0
        with prints_aside(getattr(args, "json", False), for_good=argv is None):
            code: int = args.command(args)
        sys.stdout.flush()
        return code
    except SystemExit as end:
        return _complain(
            f"Code that was called wanted to end the program (SystemExit: {end}); it should raise instead."
        )
    except MfpoError as error:
        return _complain(str(error))
    except MemoryError as error:
        what = f": {error}" if str(error) else ""  # Python itself gives no reason
        return _complain(f"There is not enough memory{what}. Smaller networks, batches or replays need less.")
    except KeyboardInterrupt:
        _complain("interrupted.")
        return 130
    except BrokenPipeError:  # `mfpo list | head`: the reader has seen enough
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as a shell reports a process that the pipe ended: a training run may not be finished


def _complain(sentence: str) -> int:
    print("mfpo:", " ".join(sentence.split()), file=sys.stderr)
    return 2
