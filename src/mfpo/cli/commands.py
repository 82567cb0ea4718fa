"""What each command does. JAX and everything that needs it is imported inside, so that help and mistakes are fast."""

import argparse
import functools
import os
import shlex
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mfpo.cli.aside import tell
from mfpo.cli.interrupts import interrupts
from mfpo.cli.progress import Progress, make_progress
from mfpo.cli.text import seconds_text, sparkline
from mfpo.errors import ConfigError, MfpoError, MissingExtra
from mfpo.reporting.numbers import bytes_text, return_text, score_text
from mfpo.runs import machine
from mfpo.runs.files import program, resume_command

if TYPE_CHECKING:
    from mfpo.reporting.tensorboard import EventFiles
    from mfpo.runs.settings import Settings
    from mfpo.runs.training import Run

REPEAT = "mfpo: interrupted; every round that was over is stored. Repeat the command to go on."


def train(args: argparse.Namespace) -> int:
    """`mfpo train ENV`."""
    from mfpo.runs.settings import resolve
    from mfpo.runs.training import train

    given = vars(args)
    settings, config = resolve(
        {name: given[name] for name in args.fields["settings"] if name in given},
        {name: given[name] for name in args.fields["config"] if name in given},
    )
    return _watch(args, settings, lambda **watch: train(settings, config, args.out, **watch))


def resume(args: argparse.Namespace) -> int:
    """`mfpo resume RUN`."""
    from dataclasses import replace

    from mfpo.runs.directory import read_config
    from mfpo.runs.training import resume

    settings, _ = read_config(Path(args.run))
    if args.rounds is not None:
        settings = replace(settings, rounds=args.rounds)
    return _watch(args, settings, lambda **watch: resume(args.run, args.rounds, **watch))


class _Watch:
    """What a run calls back: the display, the event files, and where the run lies."""

    def __init__(self, progress: Progress, title: str, tensorboard: bool) -> None:
        self.progress = progress
        self._title = title
        self.path: Path | None = None
        self.round = 0
        self._tensorboard = tensorboard
        self._events: EventFiles | None = None

    def started(self, path: Path) -> None:
        from mfpo.reporting.tensorboard import EventFiles

        self.path = path
        self.progress.started(self._title)
        if self._tensorboard:
            self._events = EventFiles(path)

    def row(self, row: dict[str, Any]) -> None:
        self.round = row["round"]
        self.progress.row(row)
        if self._events is not None:
            self._events(row)

    def close(self) -> None:
        self.progress.close()
        if self._events is not None:
            self._events.close()


def _watch(
    args: argparse.Namespace,
    settings: "Settings",
    start: "Callable[..., Run]",
    finish: "Callable[[argparse.Namespace, Run, _Watch], int] | None" = None,
    title: str = "",
    advice: "Callable[[_Watch], str] | None" = None,
) -> int:
    """Run `start` with a display, and tell how it ended; to one who interrupts it, how to go on."""
    if args.tensorboard:
        from mfpo.reporting import tensorboard

        tensorboard.require()  # if it is missing, say so before training
    machine.prepare(settings.env)
    agents = "1 agent" if settings.agents == 1 else f"{settings.agents} agents"
    liars = f" ({settings.byzantine} of them with {settings.attack})" if settings.byzantine else ""
    title += f"{settings.env}, {settings.algorithm}, {agents}{liars}, seed {settings.seed}"
    watch = _Watch(make_progress(settings.rounds, args.quiet), title, args.tensorboard)
    try:
        with interrupts() as signals:

            def callback(row: dict[str, Any]) -> None:
                watch.row(row)
                signals.check()

            try:
                run = start(callback=callback, notice=watch.progress.notice, started=watch.started)
            except KeyboardInterrupt:
                watch.close()
                print((advice or _how_to_go_on)(watch), file=sys.stderr)
                return signals.exit_code
            return (finish or _finish)(args, run, watch)
    finally:
        watch.close()


def _how_to_go_on(watch: _Watch) -> str:
    if watch.path is None:
        return "mfpo: interrupted before the first round."
    when = f"after round {watch.round}" if watch.round else "before a round of this session was over"
    return f"mfpo: interrupted {when}; go on with: {resume_command(watch.path)}"


def _finish(args: argparse.Namespace, run: "Run", watch: _Watch) -> int:
    """The picture and the summary. The run is safe by now, so a picture that fails does not hide the numbers."""
    from mfpo.reporting.curves import save_figure

    curve: Path | None = run.path / "curve.png"
    code = 0
    try:
        save_figure([run.path], run.path / "curve.png")
    except MfpoError as error:
        curve, code = None, 0 if isinstance(error, MissingExtra) else 2
        watch.progress.notice(str(error))
    watch.close()
    if args.json:
        tell({**run.summary, "path": str(run.path)})
    else:
        print(_summary(run, curve))
    return code


def _summary(run: "Run", curve: Path | None) -> str:
    summary = run.summary
    evaluation, place = summary["evaluation"], shlex.quote(str(run.path))
    score = score_text(evaluation["mean"], evaluation["std"])
    lines = [f"{summary['env']} with {summary['algorithm']}: {score} over {evaluation['episodes']} fresh episodes"]
    if sys.stdout.isatty():
        judged = [row["evaluation_mean"] for row in run.metrics if "evaluation_mean" in row]
        by_round = judged or [row["return_mean"] for row in run.metrics]
        lines.append(f"  {sparkline(by_round)}  {'evaluation on the way' if judged else 'return by round'}")
    speed, trajectories = summary.get("env_steps_per_second"), summary["trajectories_per_agent"]
    lines += [
        f"  rounds         {summary['rounds']} with {summary['agents']} agents",
        f"  trajectories   {trajectories:,.0f} per agent, {summary['env_steps']:,} environment steps",
        f"  bytes          {bytes_text(summary['bytes_up'])} up, {bytes_text(summary['bytes_down'])} down",
        f"  time           {seconds_text(summary['wall_seconds'])}" + (f", {speed:,.0f} steps/s" if speed else ""),
        f"  curve          {curve or 'not drawn'}",
        f"  watch it       {program()} play {place}",
        f"  compare        {program()} plot {place} …",
    ]
    return "\n".join(lines)


def compare(args: argparse.Namespace) -> int:
    """`mfpo compare ENV`."""
    from mfpo.reporting.comparison import save_comparison, table_text
    from mfpo.runs import comparison
    from mfpo.runs.entries import is_finished, run

    given = vars(args)
    values = {name: given[name] for name in args.fields["settings"] if name in given}
    entries = comparison.plan(args.env, args.algorithms, args.seeds, args.out and Path(args.out), values)
    missing = [entry for entry in entries if not is_finished(entry)]
    for number, entry in enumerate(missing, start=1):
        start = functools.partial(run, entry)
        title = f"run {number} of {len(missing)}: "
        code = _watch(args, entry.settings, start, finish=_tell_score, title=title, advice=lambda watch: REPEAT)
        if code:
            return code
    out = entries[0].path.parent
    rows, figures = save_comparison([entry.path for entry in entries], out)
    if args.json:
        tell({"path": str(out), "algorithms": rows})
    else:
        print(table_text(rows))
        print("\n".join(map(str, figures)))
    return 0


def _tell_score(args: argparse.Namespace, run: "Run", watch: _Watch) -> int:
    evaluation = run.summary["evaluation"]
    if not args.quiet:
        watch.progress.notice(f"{run.path}: {score_text(evaluation['mean'], evaluation['std'])}")
    return 0


def evaluate(args: argparse.Namespace) -> int:
    """`mfpo evaluate RUN`."""
    from mfpo.runs.directory import read_config
    from mfpo.runs.judging import evaluate_run

    if args.episodes is not None and args.episodes < 1:
        raise ConfigError(f"--episodes is {args.episodes}, but it must be at least 1.")
    settings, _ = read_config(Path(args.run))
    machine.prepare(settings.env)
    result = evaluate_run(args.run, args.episodes, args.seed, args.greedy)
    if args.json:
        tell(result)
        return 0
    manner = "greedy" if result["greedy"] else "stochastic"
    score = score_text(result["mean"], result["std"])
    when = f", after round {result['rounds']} of {settings.rounds}" if result["rounds"] < settings.rounds else ""
    print(f"{score} over {result['episodes']} episodes ({manner}, seed {result['seed']}{when})")
    for line in _by_world(result, settings):
        print(line)
    return 0


def _by_world(result: dict[str, Any], settings: "Settings") -> list[str]:
    """A line for every agent's world, if they differ."""
    from mfpo.envs import worlds

    means, each = result.get("agents", []), worlds.parse(settings.world, settings.agents)
    if len(set(each)) < 2:
        return []
    lines, per_agent = [], len(result["returns"]) // len(means)
    for i, (mean, world) in enumerate(zip(means, each, strict=True)):
        known = [x for x in result["returns"][i * per_agent : (i + 1) * per_agent] if x is not None]
        score = score_text(mean, statistics.pstdev(known) if known else None)
        lines.append(f"  agent {i:<4} {score:>16}  {' '.join(f'{name}={value}' for name, value in world)}")
    return lines


def plot(args: argparse.Namespace) -> int:
    """`mfpo plot RUN...`."""
    from mfpo.reporting.curves import save_figure
    from mfpo.reporting.diagnostics import save_diagnostics
    from mfpo.reporting.folders import runs_among

    runs, left_out = runs_among(args.runs)
    if left_out:
        print(f"mfpo: left out, as it is not one run: {', '.join(left_out)}", file=sys.stderr)
    single = len(runs) == 1
    name = "diagnostics.png" if args.diagnostics else "curve.png" if single else "curves.png"
    draw = save_diagnostics if args.diagnostics else save_figure
    out = args.out or (Path(runs[0]) / name if single else name)
    print(draw(runs, out, x=args.x, threshold=args.threshold, title=args.title))
    return 0


def play(args: argparse.Namespace) -> int:
    """`mfpo play RUN`."""
    from mfpo.reporting.video import check_format, film_episode, save_film, world_of
    from mfpo.runs.api import load_policy

    if not 0 <= args.seed < 2**32:
        raise ConfigError(f"--seed is {args.seed}, but it must be between 0 and {2**32 - 1}.")
    place = Path(args.run)
    out = check_format(args.out or (place if os.path.isdir(place) else place.parent) / "episode.gif")
    policy = load_policy(place, seed=args.seed)
    world = world_of(place, args.agent)
    film = film_episode(policy, policy.spec.id, args.seed, args.greedy, policy.spec.horizon, world, args.agent)
    save_film(film, out)
    print(f"return {return_text(film.episode_return)} in {len(film.frames) - 1} steps: {out}")
    return 0


def list_names(args: argparse.Namespace) -> int:
    """`mfpo list`."""
    from mfpo import registry
    from mfpo.algorithms import list_algorithms
    from mfpo.envs import list_environments
    from mfpo.federation import ENGINES
    from mfpo.runs.settings import is_tuned, list_presets

    algorithms = {name: _headline(registry.get("mfpo.algorithms", name)) for name in list_algorithms()}
    engines = {name: _headline(registry.get("mfpo.federation", name)) for name in ENGINES}
    presets = {env: {name: list_presets(env, name) for name in algorithms} for env in list_environments()}
    if args.json:
        tell({"environments": list(presets), "algorithms": algorithms, "presets": presets, "engines": engines})
        return 0
    tuned = {env: [name for name in of if is_tuned(env, name)] for env, of in presets.items()}
    environments = {env: _presets_in_words(of, tuned[env]) for env, of in presets.items()}
    environments["…"] = "any other game of ALE (tuned on Pong and Breakout), any Gymnasium id, or package.module:EnvId"
    for title, entries in (("environments", environments), ("algorithms", algorithms), ("engines", engines)):
        print(title)
        width = max(map(len, entries))
        for name, line in entries.items():
            print(f"  {name:<{width}}  {line}")
    return 0


def _presets_in_words(presets: dict[str, list[str]], tuned: list[str]) -> str:
    """For which algorithms there are settings, and which presets there are besides."""
    whose = "every algorithm" if len(tuned) == len(presets) else ", ".join(tuned)
    others = sorted({preset for names in presets.values() for preset in names} - {"default"})
    of = {preset: ", ".join(name for name, names in presets.items() if preset in names) for preset in others}
    also = "".join(f"; --preset {preset}: {names}" for preset, names in of.items())
    return (f"tuned for {whose}" if tuned else "not tuned") + also


def _headline(module: object) -> str:
    return (module.__doc__ or "").strip().partition("\n")[0]
