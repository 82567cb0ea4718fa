"""Arguments. The flags of `train` are the fields of two dataclasses: the run's settings and the algorithm's config."""

import argparse
import dataclasses
import re
from collections.abc import Callable
from importlib import metadata
from itertools import pairwise
from typing import Any

from mfpo.cli import commands, federation
from mfpo.cli.arguments import Parser
from mfpo.cli.flags import add_fields, reader
from mfpo.config import field_types, flag
from mfpo.errors import UnknownName, did_you_mean


def parse(argv: list[str]) -> argparse.Namespace:
    """The arguments of one command; `command` is the function to call with them."""
    parser = Parser(
        prog="mfpo",
        usage="mfpo COMMAND ...",
        description="Federated reinforcement learning: agents learn one policy together without sharing what they saw.",
        epilog=_examples("mfpo train CartPole-v1", "mfpo list", "mfpo train --help"),
    )
    parser.add_argument("--version", action="version", version=_version())
    wanted = next((text for text in argv if not text.startswith("-")), None)
    if wanted is not None and wanted not in COMMANDS:
        raise UnknownName(f"There is no command {wanted!r}. {did_you_mean(wanted, COMMANDS)}")
    below = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    chosen = parser
    for name, (summary, fill) in COMMANDS.items():
        command = below.add_parser(
            name, prog=f"mfpo {name}", help=summary, description=summary[0].upper() + summary[1:] + "."
        )
        if name == wanted:  # the others stay empty: their flags may need JAX
            fill(command, argv)
            chosen = command
    if not argv:
        parser.print_help()
        raise SystemExit(0)
    args, unknown = parser.parse_known_args(_join_negative_numbers(argv))
    if unknown or wanted is None:
        chosen.refuse(unknown or argv)
    return args


def _join_negative_numbers(argv: list[str]) -> list[str]:
    """argparse takes the -1e-3 of `--stepsize -1e-3` for an option; --stepsize=-1e-3 it understands."""
    joined: list[str] = []
    for text in argv:
        if (
            joined
            and re.fullmatch(r"--[a-z][a-z0-9-]*", joined[-1])
            and re.fullmatch(r"-[0-9.][0-9.,eE+-]*|-inf", text)
        ):
            joined[-1] += f"={text}"
        else:
            joined.append(text)
    return joined


def _version() -> str:
    try:
        return f"mfpo {metadata.version('mfpo')}"
    except metadata.PackageNotFoundError:
        return "mfpo (not installed)"


def _examples(*lines: str) -> str:
    return "examples:\n" + "".join(f"  {line}\n" for line in lines)


def _train(parser: Parser, argv: list[str]) -> None:
    parser.usage = "mfpo train ENV [options]"
    training_flags(parser, argv)
    output = _output(parser)
    output.add_argument("--out", metavar="DIR", help="directory of the run; a free name below runs/ if left out")
    parser.epilog = _examples(
        "mfpo train CartPole-v1",
        "mfpo train CartPole-v1 --agents 20 --rounds 50 --seed 1 --out runs/twenty",
        "mfpo train CartPole-v1 --world length=0.25..1      every agent its own pole",
        "mfpo train CartPole-v1 --help                     the defaults for this environment",
        "mfpo train Pendulum-v1 --json --quiet > summary.json",
    )
    parser.set_defaults(command=commands.train)


def training_flags(parser: Parser, argv: list[str], skip: tuple[str, ...] = (), several: bool = False) -> None:
    """ENV, a flag per setting of the run (but those to `skip`), and one per setting of the algorithm.

    `several`: numbers may be lists.
    """
    from mfpo import algorithms
    from mfpo.runs.settings import Settings

    first = Parser(prog="mfpo train", add_help=False)
    first.add_argument("--algorithm", default=_default(Settings, "algorithm"))
    first.add_argument("--preset", default=_default(Settings, "preset"))
    given = first.parse_known_args(argv)[0]
    config_class = algorithms.config_class(given.algorithm)
    of_run: dict[str, Any] = {}
    of_algorithm: dict[str, Any] = {}
    if {"-h", "--help"} & set(argv):
        of_run, of_algorithm, source = _preset_defaults(argv, given.algorithm, given.preset)
        parser.description = f"{parser.description} {source}"

    parser.add_argument("env", metavar="ENV", help="of `mfpo list`, a Gymnasium id, or package.module:EnvId")
    add_fields(parser.add_argument_group("the run"), Settings, of_run, ("env", *skip), several)
    add_fields(parser.add_argument_group(f"the algorithm {given.algorithm}"), config_class, of_algorithm, (), several)
    fields = {"settings": list(field_types(Settings)), "config": list(field_types(config_class))}
    parser.set_defaults(fields=fields)


def _default(cls: type, name: str) -> Any:
    return next(field.default for field in dataclasses.fields(cls) if field.name == name)


def _preset_defaults(argv: list[str], algorithm: str, preset: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """What the flags default to once the environment is known, and a sentence that says so."""
    from mfpo import algorithms
    from mfpo.config import as_dict
    from mfpo.envs import list_environments
    from mfpo.runs.settings import Settings, is_tuned, resolve

    known = list_environments()
    kinds = field_types(Settings) | field_types(algorithms.config_class(algorithm))
    truths = [flag(name) for name, kind in kinds.items() if kind is bool]
    bare = {"--json", "--quiet", "--tensorboard", "-h", "--help", *truths, *(f"--no-{of[2:]}" for of in truths)}
    words = [text for before, text in pairwise(["", *argv]) if before in bare or not before.startswith("-")]
    env = next((text for text in words if text in known or is_tuned(text, algorithm)), None)
    if env is None:
        return {}, {}, "The preset of an environment may change a default: `mfpo train ENV --help` shows the result."
    settings, config = resolve({"env": env, "algorithm": algorithm, "preset": preset}, {})
    return as_dict(settings), as_dict(config), f"The defaults below are those of the preset {preset!r} of {env}."


def _resume(parser: Parser, argv: list[str]) -> None:
    _run_argument(parser)
    parser.add_argument("--rounds", type=reader(int), metavar="N", help="train on to this many rounds in all")
    _output(parser)
    parser.epilog = _examples(
        "mfpo resume runs/CartPole-v1-mfpo-seed0-1", "mfpo resume runs/CartPole-v1-mfpo-seed0-1 --rounds 60"
    )
    parser.set_defaults(command=commands.resume)


def _evaluate(parser: Parser, argv: list[str]) -> None:
    _run_argument(parser)
    parser.add_argument("--episodes", type=reader(int), metavar="N", help="number of episodes (default: the run's)")
    parser.add_argument("--seed", type=reader(int), metavar="N", help="another seed gives other episodes")
    parser.add_argument("--greedy", action="store_true", help="take the most likely action instead of drawing one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = _examples(
        "mfpo evaluate runs/CartPole-v1-mfpo-seed0-1",
        "mfpo evaluate runs/CartPole-v1-mfpo-seed0-1 --episodes 1000 --seed 7 --greedy",
    )
    parser.set_defaults(command=commands.evaluate)


def _plot(parser: Parser, argv: list[str]) -> None:
    from mfpo.reporting.curves import AXES

    parser.add_argument("runs", metavar="RUN", nargs="+", help="run directories; seeds of one setting become one line")
    parser.add_argument("--x", default="rounds", metavar="{" + ",".join(AXES) + "}", help="horizontal axis (rounds)")
    parser.add_argument("--out", metavar="FILE", help=".png, .svg or .pdf; one run: its curve.png, several: curves.png")
    parser.add_argument("--threshold", type=reader(float), metavar="X", help="draw a line at this return")
    parser.add_argument("--title", metavar="TEXT", help="instead of what the runs have in common")
    parser.add_argument(
        "--diagnostics",
        action="store_true",
        help="gradient, its error, consensus, drift, weights, too: diagnostics.png",
    )
    parser.epilog = _examples(
        "mfpo plot runs/CartPole-v1-mfpo-seed0-1",
        "mfpo plot runs/CartPole-v1-mfpo-seed0-1 --diagnostics",
        "mfpo plot runs/* --x bytes --threshold 475 --out comparison.svg",
    )
    parser.set_defaults(command=commands.plot)


def _compare(parser: Parser, argv: list[str]) -> None:
    from mfpo.algorithms import list_algorithms
    from mfpo.runs.settings import Settings

    names = list_algorithms()
    parser.usage = "mfpo compare ENV --algorithms NAME,NAME,... [options]"
    parser.add_argument("env", metavar="ENV", help="of `mfpo list`, a Gymnasium id, or package.module:EnvId")
    parser.add_argument(
        "--algorithms",
        type=lambda text: [name.strip() for name in text.split(",") if name.strip()],
        default=names,
        metavar="NAMES",
        help=f"separated by commas ({','.join(names)})",
    )
    parser.add_argument("--seeds", type=reader(int), default=5, metavar="N", help="runs of each: seeds 0 .. N-1 (5)")
    add_fields(parser.add_argument_group("all runs"), Settings, {}, skip=("env", "algorithm", "seed"))
    output = _output(parser)
    output.add_argument("--out", metavar="DIR", help="folder of the comparison (runs/compare-ENV)")
    parser.epilog = _examples(
        "mfpo compare CartPole-v1 --algorithms mfpo,fedpg_br --seeds 5",
        "mfpo compare CartPole-v1 --byzantine 3 --attack sign-flip --aggregation median --out runs/attacked",
    )
    parser.set_defaults(command=commands.compare, fields={"settings": list(field_types(Settings))})


def _sweep(parser: Parser, argv: list[str]) -> None:
    from mfpo.cli import sweeping

    parser.usage = "mfpo sweep ENV --OPTION VALUE,VALUE,... [options]"
    parser.description = "Train with several values of one number, each with several seeds, and draw what it does."
    training_flags(parser, argv, skip=("seed",), several=True)
    sweeping.fill(parser, _output(parser))
    parser.epilog = _examples(
        "mfpo sweep CartPole-v1 --agents 1,2,5,10,20,50 --seeds 10",
        "mfpo sweep CartPole-v1 --local-steps 1,2,5,10,20,50 --seeds 10",
        "mfpo sweep CartPole-v1 --trajectories 1,5,10,20,50 --seeds 10",
        "mfpo sweep Pendulum-v1 --stepsize 0.03,0.1,0.3 --threshold -200 --out runs/stepsizes",
        "the same command again                            goes on where it was interrupted",
    )


def _plan(parser: Parser, argv: list[str]) -> None:
    from mfpo.cli import planning

    planning.fill(parser)
    parser.epilog = _examples(
        "mfpo plan --agents 20 --target-eps 0.05",
        "mfpo plan --agents 20 --target-eps 0.05 --smoothness 40 --sigma 3 --gap 100 --out plan.png",
        "mfpo plan --local-steps 10 --trajectories 20           rounds for a K and D of your own",
        "mfpo plan --smoothness 0 --horizon 200 --beta1 2       the lemmas' worst case",
        "mfpo plan --pilot CartPole-v1 --gap 80                 constants from a short run of your environment",
        "mfpo plan --lambdas 0,0.5,1 --json",
    )


def _watch(parser: Parser, argv: list[str]) -> None:
    from mfpo.cli import watching

    watching.fill(parser)
    parser.epilog = _examples(
        "mfpo watch runs", "mfpo watch runs/CartPole-v1-mfpo-seed0-1 --port 0", "mfpo watch cluster"
    )


def _list(parser: Parser, argv: list[str]) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = _examples("mfpo list", "mfpo list --json")
    parser.set_defaults(command=commands.list_names)


def _play(parser: Parser, argv: list[str]) -> None:
    _run_argument(parser)
    parser.add_argument("--out", metavar="FILE", help=".gif or .mp4 (default: episode.gif in the run directory)")
    parser.add_argument("--greedy", action="store_true", help="take the most likely action instead of drawing one")
    parser.add_argument("--seed", type=reader(int), default=0, metavar="N", help="another seed, another episode (0)")
    parser.add_argument("--agent", type=reader(int), default=0, metavar="N", help="in whose world, if they differ (0)")
    parser.epilog = _examples(
        "mfpo play runs/CartPole-v1-mfpo-seed0-1",
        "mfpo play runs/CartPole-v1-mfpo-seed0-1 --greedy --out episode.mp4",
    )
    parser.set_defaults(command=commands.play)


def _run_argument(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="run directory")


def _output(parser: Parser) -> Any:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print the summary as one JSON object, and nothing else")
    group.add_argument("--quiet", action="store_true", help="print the summary only")
    group.add_argument("--tensorboard", action="store_true", help="write event files too, below RUN/tensorboard")
    return group


def _federation(parser: Parser, argv: list[str]) -> None:
    actions = ("init", "submit", "status", "stop")
    action = next((text for text in argv[argv.index("federation") + 1 :] if not text.startswith("-")), None)
    parser.add_argument("action", metavar="{" + ",".join(actions) + "}", help="what to do")
    parser.epilog = _examples(
        "mfpo federation init cluster --agents 3 --host server.example",
        "mfpo server cluster                               on the server",
        "mfpo agent 02                                     on a machine, in a copy of cluster/agents/02",
        "mfpo federation submit cluster CartPole-v1 --rounds 20",
        "mfpo federation status cluster",
    )
    if action is None:
        parser.usage = "mfpo federation {" + ",".join(actions) + "} DIR ..."
        return
    if action not in actions:
        raise UnknownName(f"There is no `mfpo federation {action}`. {did_you_mean(action, actions)}")
    parser.prog = f"mfpo federation {action}"
    parser.usage = f"mfpo federation {action} DIR [options]"
    parser.add_argument("folder", metavar="DIR", help="folder of the federation")
    if action == "init":
        parser.add_argument("--agents", type=reader(int), required=True, metavar="N", help="how many agents there are")
        parser.add_argument("--host", default="127.0.0.1", metavar="NAME", help="where agents find the server")
        parser.add_argument("--port", type=reader(int), default=8443, metavar="N", help="and its port (8443)")
        parser.add_argument(
            "--listen", metavar="ADDRESS", help="address of the server to listen at (all but loopback's)"
        )
        parser.add_argument("--insecure", action="store_true", help="no TLS and no keys; on loopback only, for a try")
    elif action == "submit":
        parser.usage = "mfpo federation submit DIR ENV [options], or: mfpo federation submit DIR --run NAME"
        if "--run" not in argv:
            training_flags(parser, argv, skip=("agents", "engine", "devices"))
        parser.add_argument("--run", metavar="NAME", help="go on with this run, or follow it")
        parser.add_argument("--name", metavar="NAME", help="what to call the run; a free name if left out")
        parser.add_argument("--min-agents", type=reader(int), default=1, metavar="N", help="a round needs them (1)")
        parser.add_argument("--round-timeout", type=reader(float), default=600.0, metavar="X", help="seconds (600)")
        parser.add_argument("--detach", action="store_true", help="do not wait for its end")
    elif action == "stop":
        parser.add_argument("--run", metavar="NAME", help="which one (all that are running)")
    parser.set_defaults(command=getattr(federation, action))


def _server(parser: Parser, argv: list[str]) -> None:
    parser.add_argument("folder", metavar="DIR", help="folder of the federation")
    parser.epilog = _examples("mfpo server cluster")
    parser.set_defaults(command=federation.server)


def _agent(parser: Parser, argv: list[str]) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the agent's own folder, a copy of DIR/agents/03")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)  # what `mfpo agent` keeps running
    parser.epilog = _examples("mfpo agent cluster/agents/03")
    parser.set_defaults(command=federation.agent)


COMMANDS: dict[str, tuple[str, Callable[[Parser, list[str]], None]]] = {
    "train": ("train agents on an environment", _train),
    "resume": ("go on with a run that was stopped, or train it longer", _resume),
    "evaluate": ("judge a run's policy, of a finished run or one on its way, on fresh episodes", _evaluate),
    "compare": ("run several algorithms with several seeds, and compare them", _compare),
    "sweep": ("train with several values of one number, and draw what it does", _sweep),
    "plan": ("say what the theorem asks for: local steps, trajectories, rounds, bytes", _plan),
    "plot": ("draw the learning curves of runs", _plot),
    "watch": ("show runs on a web page that updates itself", _watch),
    "list": ("show environments, algorithms, presets and engines", _list),
    "play": ("film an episode of a run's policy", _play),
    "federation": ("set up a federation of machines; train on it, look at it, stop it", _federation),
    "server": ("be the server of a federation", _server),
    "agent": ("be an agent of a federation", _agent),
}
