"""What does a round over the network cost beyond the agents' own work? Beside it, a round trip of stock Flower.

    python benchmarks/federation.py    # prints a table, writes results/federation.json

One server and three agents, separate processes of this machine, TLS and keys on. Two apps take turns on the same Flower
processes, both warm (the first rounds of each are left out): mfpo, and an app of stock Flower whose clients send back
the arrays they get, of the same sizes. Of mfpo's rounds the agents' own work is taken off; it is small here, for every
episode is cut after two steps. Compare the ratio: seconds depend on the machine and on what else it does.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from mfpo.federation.flower import control, layout, processes, server_app
from mfpo.federation.flower.learner import make_learner
from mfpo.runs import metrics
from mfpo.runs.settings import resolve_options

RESULTS = Path(__file__).parent.parent / "results"
AGENTS, TURNS, ROUNDS, WARM = 3, 2, 6, 2
SMALL = {"hidden": (128, 128), "horizon": 2, "local_steps": 1, "trajectories": 1, "evaluation_episodes": 1}
OPTIONS: dict[str, Any] = {"env": "CartPole-v1", "agents": AGENTS, "engine": "flower", "rounds": ROUNDS, **SMALL}
STOCK_APP = """
import json, time
from flwr.app import ArrayRecord, Array, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.train()
def train(message, context):
    return Message(message.content, reply_to=message)

@server.main()
def main(grid, context):
    config, seconds = context.run_config, []
    sizes = json.loads(config["sizes"])
    while len(list(grid.get_node_ids())) < config["agents"]:
        time.sleep(1.0)
    for number in range(config["rounds"]):
        began = time.perf_counter()
        arrays = {str(i): Array("uint8", (size,), "raw", bytes(size)) for i, size in enumerate(sizes)}
        messages = [Message(RecordDict({"arrays": ArrayRecord(arrays)}), node, "train") for node in grid.get_node_ids()]
        replies = list(grid.send_and_receive(messages))
        assert len(replies) == config["agents"] and not any(reply.has_error() for reply in replies)
        seconds.append(time.perf_counter() - began)
    with open(config["out"] + ".part", "w") as file:
        json.dump(seconds, file)
    import os
    os.replace(config["out"] + ".part", config["out"])
"""


def wait_for(path: Path, what: str, seconds: float = 900.0) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            sys.exit(f"{what} did not end within {seconds} s")
        time.sleep(0.5)


def own_work() -> tuple[float, list[int]]:
    """Seconds of an agent's round, its program compiled, and the sizes of what it sends."""
    from mfpo.federation.flower import wire

    learner = make_learner(*resolve_options(OPTIONS), 0)
    specification, agent = wire.specify(learner.algorithm), learner.start()
    import jax
    import jax.numpy as jnp

    download = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), specification.download)
    seconds = []
    for number in range(2, 12):
        began = time.perf_counter()
        jax.block_until_ready(learner.round(agent, download, number))
        seconds.append(time.perf_counter() - began)
    sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(specification.download)]
    return median(seconds), sizes


def mfpo_rounds(federation: layout.Federation, turn: int) -> list[float]:
    settings, config = resolve_options({**OPTIONS, "seed": turn})
    run = server_app.new_run(federation.folder / "runs" / f"mfpo-{turn}", settings, config, AGENTS)
    control.submit(federation, run)
    wait_for(run / "summary.json", "mfpo")
    return [row["seconds"] for row in metrics.read(run / "metrics.jsonl")][WARM:]


def stock_rounds(federation: layout.Federation, turn: int, sizes: list[int]) -> list[float]:
    out = federation.folder.resolve() / f"stock-{turn}.json"
    values = f"out={json.dumps(str(out))} sizes={json.dumps(json.dumps(sizes))} rounds={ROUNDS} agents={AGENTS}"
    control.flwr(federation, "run", "stock", "mfpo", "--run-config", values)
    wait_for(out, "stock Flower")
    return [float(x) for x in json.loads(out.read_text())][WARM:]


def write_stock_app(folder: Path) -> None:
    (folder / "stock_app").mkdir(parents=True)
    (folder / "stock_app" / "__init__.py").write_text("")
    (folder / "stock_app" / "app.py").write_text(STOCK_APP)
    document = layout.APP.replace('name = "mfpo-federation"', 'name = "stock"')
    document = document.replace("mfpo_app.server_app:app", "stock_app.app:server")
    document = document.replace("mfpo_app.client_app:app", "stock_app.app:client")
    config = '[tool.flwr.app.config]\nout = ""\nsizes = ""\nrounds = 1\nagents = 1\n'
    (folder / "pyproject.toml").write_text(document.partition("[tool.flwr.app.config]")[0] + config)


def measure(folder: Path) -> dict[str, float]:
    """Both, in turns."""
    work, sizes = own_work()
    port = processes.free_port()
    federation = layout.create(folder / "cluster", AGENTS, "127.0.0.1", port, "127.0.0.1")
    write_stock_app(federation.folder / "server" / "stock")
    commands = [["server", str(federation.folder)]]
    commands += [["agent", str(federation.folder / "agents" / f"{i:02d}")] for i in range(AGENTS)]
    running = []
    with (folder / "log").open("ab") as log:
        for command in commands:
            running.append(subprocess.Popen([sys.executable, "-m", "mfpo", *command], stdout=log, stderr=log))
    try:
        wait_for(federation.folder / "server" / control.NODES, "the server")
        while len(json.loads((federation.folder / "server" / control.NODES).read_text())) < AGENTS:
            time.sleep(1.0)
        ours: list[float] = []
        stock: list[float] = []
        for turn in range(TURNS):
            ours += mfpo_rounds(federation, turn)
            stock += stock_rounds(federation, turn, sizes)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(60)
    beyond = median(ours) - work
    return {
        "agents": AGENTS,
        "bytes each way, per agent": sum(sizes),
        "an agent's own work, seconds": round(work, 4),
        "a round of mfpo beyond it, seconds (median)": round(beyond, 3),
        "fastest and slowest": [round(min(ours) - work, 3), round(max(ours) - work, 3)],
        "a round trip of stock Flower, seconds (median)": round(median(stock), 3),
        "fastest and slowest of stock Flower": [round(min(stock), 3), round(max(stock), 3)],
        "mfpo over stock Flower": round(beyond / median(stock), 3),
    }


def main() -> None:
    """Measure, print, write."""
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder))
    for name, value in result.items():
        print(f"{name:60s} {value!s:>14}")
    (RESULTS / "federation.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
