"""The Flower app on the server: it trains the run it is told, with the agents that Flower reaches.

A run is a run directory, made by `mfpo federation submit`; its training loop, files and resume are those of every run.
With plain `flwr run`, which names none, it is made here of the run config.
"""

import functools
import itertools
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from mfpo.errors import ConfigError, MfpoError, RunError
from mfpo.federation.flower import roster as rosters
from mfpo.federation.flower import server
from mfpo.federation.flower.link import GridLink
from mfpo.federation.flower.roster import Roster
from mfpo.federation.flower.server import Nobody, Terms
from mfpo.runs import directory, files, training
from mfpo.runs.settings import Settings, resolve_options

TERMS = "federation.json"  # in the run directory: what it was submitted with
LOG = "federation.log"  # in the run directory: who came, who was left out and why
ORDER = "order.json"  # in the run directory: what is wanted of it now
STATES = ("wanted", "stopped", "failed")
FEDERATION = "MFPO_FEDERATION"  # environment variable: the folder of the federation, as `mfpo server` says
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the run named in the run config from where it is to its end; without a name, a new one."""
    home = Path(os.environ.get(FEDERATION, "."))
    said = context.run_config
    run = Path(str(said["run"])) if said.get("run") else found_run(home, said, context.run_id)
    nodes = read_nodes(Path(str(said.get("nodes", "")) or home / "server" / "nodes.json"))
    try:
        with directory.locked(run):
            pass
    except RunError:
        return  # it was submitted twice, and the first is at it
    if read_order(run)["state"] == "stopped":
        return  # before it could begin
    try:
        train(run, grid, nodes)
    except MfpoError as error:
        write_order(run, {"state": "failed", "reason": str(error)})
        raise


def train(
    run: Path,
    grid: Grid,
    nodes: Mapping[int, int] | None = None,
    notice: Callable[[str], object] | None = None,
) -> training.Run:
    """Go on with a run over a grid. `nodes` says which agent each node is, as far as keys tell."""
    say = notice or _teller(run)
    terms = read_terms(run)
    agents = directory.read_config(run)[0].agents
    roster = Roster(run / rosters.NAME, agents)
    roster.write()
    link = GridLink(grid, agents, terms.round_timeout, say, roster, nodes)
    make_engine = functools.partial(server.make, link=link, terms=terms, notice=say, roster=roster)
    return training.resume(run, callback=lambda row: roster.write(), notice=say, make_engine=make_engine)


def new_run(path: Path, settings: Settings, config: Any, min_agents: int = 1, timeout: float = 600.0) -> Path:
    """A run directory for a training run of a federation; what `train` would refuse is refused before there is one."""
    name = re.sub(r"[^\w-]", "_", path.name)[:80]  # as agents name its folder
    terms = Terms(f"{name}-{secrets.token_hex(4)}", min_agents, timeout)
    roster = Roster(path / rosters.NAME, settings.agents)
    make_engine = functools.partial(server.make, link=Nobody(), terms=terms, notice=_teller(path), roster=roster)
    training.assemble(settings, config, make_engine)
    directory.create(path, settings, config)
    write_terms(path, terms)
    write_order(path, {"state": "stopped"})  # until it is submitted
    return path


def write_order(run: Path, order: dict[str, Any]) -> None:
    """What is wanted of a run now, as its `state`: wanted or stopped; or failed, and why."""
    files.replace(run / ORDER, json.dumps(order).encode())


def read_order(run: Path) -> dict[str, Any]:
    """What was last wanted of a run; of a file that says nothing of the kind, that it is "damaged"."""
    try:
        order = json.loads((run / ORDER).read_text("utf-8"))
    except OSError as error:
        raise RunError(f"{run} was never submitted; do it with `mfpo federation submit`.") from error
    except ValueError:
        order = None
    sound = isinstance(order, dict) and order.get("state") in STATES
    return order if sound and isinstance(order.get("submitted", 0.0), int | float) else {"state": "damaged"}


def free_name(home: Path, settings: Settings) -> str:
    """A name for a run that no other of the federation has."""
    stem = f"{settings.env}-{settings.algorithm}".replace("/", "_")
    names = (f"{stem}-{number}" for number in itertools.count(1))
    return next(name for name in names if not (home / "runs" / name).exists())


def found_run(home: Path, said: Mapping[str, Any], flower_run: int) -> Path:
    """A new run, as a run config says: env, algorithm, agents, rounds, seed, and `more` settings as JSON."""
    try:
        more = dict(json.loads(str(said.get("more") or "{}")))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"`more` of the run config is not a JSON object ({error}).") from error
    named = {name: said[name] for name in ("env", "algorithm", "agents", "rounds", "seed") if said.get(name)}
    settings, config = resolve_options({**named, **more, "engine": "flower"})
    run = new_run(home / "runs" / free_name(home, settings), settings, config)
    write_order(run, {"state": "wanted", "flower_run": str(flower_run), "submitted": time.time()})
    return run


def write_terms(run: Path, terms: Terms) -> None:
    """Keep them with the run: they are the same when it is resumed."""
    files.replace(run / TERMS, json.dumps(terms._asdict(), indent=2).encode())


def read_terms(run: Path) -> Terms:
    """The terms of a run, or a sentence on why it has none."""
    try:
        return Terms(**json.loads((run / TERMS).read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(
            f"{run} is not a run of a federation: its {TERMS} cannot be read ({error}); make one with "
            "`mfpo federation submit`."
        ) from error


def read_nodes(path: Path) -> dict[int, int]:
    """Node -> agent, as the server noted when it registered the agents' keys; empty without such a note."""
    try:
        return {int(node): int(agent) for node, agent in json.loads(path.read_text("utf-8")).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise RunError(f"{path} cannot be read ({error}); restart `mfpo server`, which writes it again.") from error


def _teller(run: Path) -> Callable[[str], object]:
    """Writes what is worth telling to the run's log, for Flower keeps what its apps print to itself."""

    def say(sentence: str) -> None:
        with (run / LOG).open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {sentence}\n")

    return say
