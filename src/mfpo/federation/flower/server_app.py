"""The Flower app on the server: it trains the run it is told, with the agents that Flower reaches.

A run is a run directory, made by `mfpo federation submit`; its training loop, files and resume are those of every run.
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from mfpo.errors import MfpoError, RunError
from mfpo.federation import Engine
from mfpo.federation.flower import roster as rosters
from mfpo.federation.flower import server
from mfpo.federation.flower.link import GridLink
from mfpo.federation.flower.roster import Roster
from mfpo.federation.flower.server import Terms
from mfpo.runs import directory, files, training
from mfpo.runs.settings import Settings
from mfpo.types import Algorithm, Env

TERMS = "federation.json"  # in the run directory: what it was submitted with
LOG = "federation.log"  # in the run directory: who came, who was left out and why
ORDER = "order.json"  # in the run directory: what is wanted of it now
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the run named in the run config from where it is to its end."""
    run = Path(str(context.run_config["run"]))
    nodes = read_nodes(Path(str(context.run_config.get("nodes", "")) or run / "nodes.json"))
    try:
        with directory.locked(run):
            pass
    except RunError:
        return  # it was submitted twice, and the first is at it
    try:
        train(run, grid, nodes)
    except MfpoError as error:
        files.replace(run / ORDER, json.dumps({"state": "failed", "reason": str(error)}).encode())
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
    roster = Roster(run / rosters.NAME, directory.read_config(run)[0].agents)
    roster.write()

    def make_engine(settings: Settings, config: Any, algorithm: Algorithm, env: Env) -> Engine:
        link = GridLink(grid, settings.agents, terms.round_timeout, say, roster, nodes)
        return server.make(settings, config, algorithm, env, link, terms, say, roster)

    return training.resume(run, callback=lambda row: roster.write(), notice=say, make_engine=make_engine)


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
