"""How fast are the updates of Fed-SAC and Fed-DQN, against the bare matrix products of an update? Compare the ratios.

    python benchmarks/off_policy.py       # prints a table, writes results/speed-off-policy.json

A call of `learn` with a thousand new steps, on observations and actions of the size of HalfCheetah's, with networks of
2×256 units and 256 samples per update. The ceiling multiplies the same matrices, forwards and backwards, in a loop that
does nothing else: no sampling, no activations, no losses, no optimiser. Figures are CPU-seconds of the process.
"""

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mfpo import algorithms
from mfpo.config import build
from mfpo.learning import replay
from mfpo.types import Array, Box, EnvSpec, Trajectories

RESULTS = Path(__file__).parent.parent / "results"
SPEC = EnvSpec("HalfCheetah-v5", (17,), Box((-1.0,) * 6, (1.0,) * 6), 1000)
OBS, ACTION, HIDDEN, SAMPLES, BINS = 17, 6, (256, 256), 256, 5
UPDATES, REPEATS = 200, 5
CONFIG = {
    "hidden": list(HIDDEN),
    "samples": SAMPLES,
    "warmup": 0,
    "updates_per_step": UPDATES / 1000,
    "capacity": 10**5,
}

Weights = list[Array]


def weights(seed: int, *sizes: int) -> Weights:
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=s) / s[0] ** 0.5, jnp.float32) for s in itertools.pairwise(sizes)]


def forwards(x: Array, net: Weights) -> list[Array]:
    """The input of every layer, and the output."""
    seen = [x]
    for w in net:
        seen.append(seen[-1] @ w)
    return seen


def backwards(seen: list[Array], net: Weights, to_weights: bool, to_input: bool) -> tuple[Weights, Array]:
    """The products of the chain rule, from the output to the weights or to the input, or to both."""
    g, found = seen[-1], []
    for i in reversed(range(len(net))):
        if to_weights:
            found.append(seen[i].T @ g)
        if i or to_input:
            g = g @ net[i].T
    return found, g


def dqn_products(x: Array, nets: list[Weights]) -> Any:
    net, target = nets
    judged, chosen = forwards(x, target)[-1], forwards(x, net)[-1]
    found, _ = backwards(forwards(x + 1, net), net, True, False)
    return found, judged, chosen


def sac_products(x: Array, nets: list[Weights]) -> Any:
    actor, critics, targets = nets[0], nets[1:3], nets[3:]
    results: list[Any] = []

    def rated(obs: Array, action: Array) -> Array:
        return jnp.concatenate([obs, action[:, :ACTION]], axis=1)

    action = forwards(x, actor)[-1]
    results += [forwards(rated(x, action), target)[-1] for target in targets]
    results += [backwards(forwards(rated(x + 1, x), critic), critic, True, False) for critic in critics]
    seen = forwards(x + 1, actor)
    through = [backwards(forwards(rated(x + 1, seen[-1]), critic), critic, False, True)[1] for critic in critics]
    to_actor = jnp.tile(through[0] + through[1], 2)[:, : 2 * ACTION]
    results.append(backwards([*seen[:-1], to_actor], actor, True, False))
    return results


def ceiling(products: Callable[[Array, list[Weights]], Any], nets: list[Weights]) -> Callable[[], Any]:
    """UPDATES times the products; each time from a new input, so that none can be left out."""

    @jax.jit
    def run(x: Array, nets: list[Weights]) -> Any:
        def body(i: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
            results = products(carry[0], nets)
            return x + 1e-6 * jax.tree.leaves(results)[0][0, 0], results

        return jax.lax.fori_loop(0, UPDATES, body, (x, products(x, nets)))

    x = jnp.asarray(np.random.default_rng(1).normal(size=(SAMPLES, OBS)), jnp.float32)
    return lambda: run(x, nets)


def learning(name: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """`learn`, and what of it is only storing the batch."""
    algorithm = algorithms.make(name, build(algorithms.config_class(name), CONFIG, "here"), SPEC, 1)
    agent = algorithm.receive(algorithm.join(jax.random.key(0)), algorithm.init(jax.random.key(0)))
    rng, flags = np.random.default_rng(0), jnp.zeros((1000, 1), bool)
    obs = jnp.asarray(rng.normal(size=(1000, 1, OBS)), jnp.float32)
    actor, keys = algorithm.actor(agent), jax.random.split(jax.random.key(1), 1000)
    action = jax.vmap(lambda o, key: algorithm.act(actor, o, key)[1])(obs[:, 0], keys)
    reward = jnp.asarray(rng.normal(size=(1000, 1)), jnp.float32)
    ends = flags.at[-1].set(True)
    batch = Trajectories(obs, action[:, None], reward, ~flags, flags, ends, obs[0], jnp.int32(1000), reward.sum(0))
    learn, add = jax.jit(algorithm.learn), jax.jit(replay.add)
    return lambda: learn(agent, batch, jax.random.key(2)), lambda: add(agent.replay, batch)


def main() -> None:
    """Measure, print, write."""
    calls: dict[str, Callable[[], Any]] = {}
    q_nets = [weights(seed, OBS, *HIDDEN, ACTION * BINS) for seed in range(2)]
    critics = [weights(seed, OBS + ACTION, *HIDDEN, 1) for seed in range(4)]
    calls["fed_dqn products"] = ceiling(dqn_products, q_nets)
    calls["fed_sac products"] = ceiling(sac_products, [weights(4, OBS, *HIDDEN, 2 * ACTION), *critics])
    for name in ("fed_sac", "fed_dqn"):
        calls[f"{name} learn"], calls[f"{name} add"] = learning(name)
    for call in calls.values():
        jax.block_until_ready(call())
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, call in calls.items():
            start = time.process_time()
            jax.block_until_ready(call())
            seconds[name].append(time.process_time() - start)
    middle = {name: float(np.median(of)) for name, of in seconds.items()}
    result = {}
    for name in ("fed_sac", "fed_dqn"):
        bare, learn = middle[f"{name} products"], middle[f"{name} learn"]
        result[f"{name}: products of an update, ms"] = round(1e3 * bare / UPDATES, 2)
        result[f"{name}: update within learn, ms"] = round(1e3 * learn / UPDATES, 2)
        result[f"{name}: rate of updates, of the bare products"] = round(bare / learn, 2)
        result[f"{name}: storing a batch of 1,000 steps, ms"] = round(1e3 * middle[f"{name} add"], 2)
    for words, value in result.items():
        print(f"{words:60s} {value:>8}")
    (RESULTS / "speed-off-policy.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
