"""Commands of a federation over the network. Flower is imported inside: only these commands need it."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from mfpo.cli.interrupts import interrupts
from mfpo.cli.progress import make_progress
from mfpo.errors import MfpoError, MissingExtra, RunError
from mfpo.reporting.numbers import return_text, score_text
from mfpo.runs import machine


def _require_flower() -> None:
    try:
        import cryptography
        import flwr
    except ImportError as error:
        raise MissingExtra("A federation over the network", "flower") from error
    del cryptography, flwr


def init(args: argparse.Namespace) -> int:
    """`mfpo federation init DIR --agents N`."""
    _require_flower()
    from mfpo.federation.flower import layout

    listen = args.listen or ("127.0.0.1" if args.host in ("127.0.0.1", "localhost") else "0.0.0.0")
    made = layout.create(Path(args.folder), args.agents, args.host, args.port, listen, args.insecure)
    last = f"{made.agents - 1:02d}"
    print(f"{made.folder}: a federation of {made.agents} agents, whose server is at {made.address}")
    print(f"  copy           {made.folder}/agents/00 .. {last}, each to one machine and over a safe channel")
    print(f"  start          mfpo server {made.folder}; on each machine: mfpo agent FOLDER")
    print(f"  train          mfpo federation submit {made.folder} CartPole-v1")
    return 0


def server(args: argparse.Namespace) -> int:
    """`mfpo server DIR`."""
    _require_flower()
    from mfpo.federation.flower import layout, serving

    federation = layout.read(Path(args.folder))
    return _until_interrupted(lambda stop: serving.serve(federation, _say, stop))


def agent(args: argparse.Namespace) -> int:
    """`mfpo agent FOLDER`."""
    _require_flower()
    from mfpo.federation.flower import attending, layout

    member = layout.read_member(Path(args.folder))
    if args.worker:
        machine.prepare()
        return _until_interrupted(lambda stop: attending.work(member, _say, stop))
    return _until_interrupted(lambda stop: attending.attend(member, _say, stop))


def submit(args: argparse.Namespace) -> int:
    """`mfpo federation submit DIR ENV`."""
    _require_flower()
    from mfpo.federation.flower import control, layout, server_app
    from mfpo.runs.settings import resolve

    federation = layout.read(Path(args.folder))
    if args.run:
        run = federation.folder / "runs" / args.run
        if control.state_of(run) in ("stopped", "failed", "damaged"):
            control.check_up(federation)
            control.submit(federation, run)
    else:
        given = vars(args)
        values = {name: given[name] for name in args.fields["settings"] if name in given}
        values |= {"agents": federation.agents, "engine": "flower"}
        settings, config = resolve(values, {name: given[name] for name in args.fields["config"] if name in given})
        control.check_up(federation)
        name = args.name or server_app.free_name(federation.folder, settings)
        run = federation.folder / "runs" / name
        server_app.new_run(run, settings, config, args.min_agents, args.round_timeout)
        control.submit(federation, run)
        print(f"mfpo: submitted {run}", file=sys.stderr, flush=True)
    return 0 if args.detach else _follow(args.folder, run)


def _follow(folder: str, run: Path) -> int:
    """The progress of a run, until it ends; Ctrl-C leaves it running."""
    from mfpo.federation.flower import control
    from mfpo.runs import directory, metrics, summary

    settings, _ = directory.read_config(run)
    progress = make_progress(settings.rounds, False)
    shown, heard = 0, max(len(_log_lines(run)) - 3, 0)  # who follows it again is told what was last said
    try:
        with interrupts():
            progress.started(run.name)
            while True:
                ended = control.state_of(run) in ("finished", "failed", "stopped")
                for line in _log_lines(run)[heard:]:
                    progress.notice(line.partition(" ")[2])  # without the day
                    heard += 1
                for row in metrics.read(run / directory.METRICS)[shown:]:
                    progress.row(row)
                    shown += 1
                if ended:
                    break
                time.sleep(0.5)
    except KeyboardInterrupt:
        progress.close()
        print(f"mfpo: it goes on; follow it with: mfpo federation submit {folder} --run {run.name}", file=sys.stderr)
        return 130
    progress.close()
    outcome = summary.read(run)
    if outcome is None:
        print(f"mfpo: {_status_line(run)}", file=sys.stderr)
        return 2
    evaluation = outcome["evaluation"]
    print(f"{run}: {score_text(evaluation['mean'], evaluation['std'])} over {evaluation['episodes']} fresh episodes")
    return 0


def _log_lines(run: Path) -> list[str]:
    from mfpo.federation.flower.server_app import LOG

    try:
        return (run / LOG).read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []


def status(args: argparse.Namespace) -> int:
    """`mfpo federation status DIR`."""
    _require_flower()
    from mfpo.federation.flower import control, layout

    federation = layout.read(Path(args.folder))
    failure: MfpoError | None = None
    try:
        for line in control.agent_lines(federation):
            print(line)
    except MfpoError as error:  # files tell of the runs, whether the server answers or not
        failure = error
    for run in control.runs_of(federation):
        try:
            print(_status_line(run))
        except RunError as error:  # a broken one does not hide the others
            print(f"{run.name}: {error}")
    if failure is not None:
        raise failure
    return 0


def _status_line(run: Path) -> str:
    """How far a run is."""
    from mfpo.federation.flower import control, server_app
    from mfpo.runs import directory, metrics

    settings, _ = directory.read_config(run)
    rows = metrics.read(run / directory.METRICS)
    line = f"{run.name}: {control.state_of(run)}, round {len(rows)} of {settings.rounds}"
    if rows:
        line += f", return {return_text(rows[-1]['return_mean'])}, {rows[-1]['answered']} agents answered"
    order = server_app.read_order(run)
    return f"{line}; {order['reason']}" if "reason" in order else line


def stop(args: argparse.Namespace) -> int:
    """`mfpo federation stop DIR`."""
    _require_flower()
    from mfpo.federation.flower import control, layout

    federation = layout.read(Path(args.folder))
    chosen = [run for run in control.runs_of(federation) if args.run in (None, run.name)]
    if args.run and not chosen:
        raise RunError(f"There is no run {args.run!r} of {args.folder}; `mfpo federation status` shows them.")
    for run in chosen:
        state = control.state_of(run)
        if state in ("running", "waiting"):
            control.halt(federation, run)
            print(f"stopped {run.name}; go on with: mfpo federation submit {args.folder} --run {run.name}")
        elif args.run:
            print(f"{run.name}: {state}; there is nothing to stop.")
    return 0


def _say(sentence: str) -> None:
    print(f"mfpo: {time.strftime('%H:%M:%S')} {sentence}", file=sys.stderr, flush=True)


def _until_interrupted(serve: Callable[[Callable[[], bool]], None]) -> int:
    """`serve` is told how to ask whether to stop: behind a script's `&`, Ctrl-C is ignored."""
    with interrupts() as signals:
        try:
            serve(lambda: bool(signals.received))
        except KeyboardInterrupt:
            _say("ends.")
        return signals.exit_code if signals.received else 0
