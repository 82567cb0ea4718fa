"""`mfpo watch`: a page for the operator."""

import argparse
import contextlib
import sys
from pathlib import Path

from mfpo.cli.flags import reader
from mfpo.cli.interrupts import interrupts


def fill(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    from mfpo.reporting.web import PORT

    parser.usage = "mfpo watch RUN|DIR [options]"
    parser.description = (
        "Show runs on a web page that updates itself. It reads run directories and changes nothing, and only this "
        "machine sees it unless --host says otherwise."
    )
    parser.add_argument("folder", metavar="RUN|DIR", help="a run, a folder of runs, or the folder of a federation")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen at (127.0.0.1)")
    parser.add_argument("--port", type=reader(int), default=PORT, metavar="N", help=f"port; 0: a free one ({PORT})")
    parser.set_defaults(command=watch)


def watch(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from mfpo.reporting.watch import Watcher
    from mfpo.reporting.web import PageServer

    watcher = Watcher(Path(args.folder))
    with interrupts() as signals:
        with contextlib.suppress(KeyboardInterrupt), PageServer(watcher, args.host, args.port) as server:
            if not watcher.runs()["runs"]:
                print(f"mfpo: no runs in {args.folder} yet; they are shown as they appear.", file=sys.stderr)
            if not server.loopback:
                print("mfpo: whoever reaches this machine at this port can see the page.", file=sys.stderr)
            print(f"watching {args.folder} at {server.address} (Ctrl-C ends it)", flush=True)
            server.serve_until(lambda: bool(signals.received))
        return signals.exit_code
