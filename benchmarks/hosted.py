"""How far is training in hosted environments from the bare simulator? All parts interleaved in one run.

    python benchmarks/hosted.py mujoco    # prints a table, writes results/speed-mujoco.json
    python benchmarks/hosted.py atari     # prints a table, writes results/speed-atari.json
    python benchmarks/hosted.py memory    # of Pong with ten agents and twenty games each; results/speed-memory.json
    python benchmarks/hosted.py processes # what --processes is worth; results/speed-processes.json

Compare the ratios: seconds depend on the machine and on what else it does.

MuJoCo: 200 HalfCheetahs, ten agents with twenty each, policy and value networks of 2×256 units, Fisher products on 256
states as in the preset. The ceiling is `mujoco.rollout` with the controls that the policy gave, open loop: no policy,
no rewards, nothing recorded. Other controls would be another ceiling: with a tenth of uniform ones a step costs a fifth
more.

Atari: a round of Pong as its preset has it. The floor of sampling is ALE's own vectoriser with random actions, and the
bare network looking at as many frames: each by itself, and in turns, called from Python. In turns they take longer: a
network's pass is slower after a step of the games than after another pass. The floor of training adds the vectoriser's
own reset with seeds, once a round, and the network passes that MFPO asks for, which are two gradients and the features
that its value function sees. Give it one core (`taskset -c 0`).

Processes: episodes of an environment whose step takes a given time (`busy`), fifty copies at once.

Memory: with nothing in the cache of compiled programs, as compiling takes memory, too.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mfpo import algorithms, envs
from mfpo.config import build
from mfpo.envs import atari
from mfpo.envs import mujoco as tasks
from mfpo.federation import make_engine
from mfpo.federation.sampling import make_sampler
from mfpo.learning import trees
from mfpo.learning.images import UNITS, Network, arrange, see
from mfpo.runs import machine
from mfpo.runs.settings import resolve_options
from mfpo.types import Algorithm, Array, Env

RESULTS = Path(__file__).parent.parent / "results"
AGENTS, COLUMNS = 10, 20
CHEETAH, CHEETAH_STEPS = "HalfCheetah-v5", 1000
CHEETAH_CONFIG = {
    "local_steps": 1,
    "trajectories": COLUMNS,
    "hidden": [256, 256],
    "value_hidden": [256, 256],
    "fisher_samples": 256,
}
PONG, BLOCK = "ALE/Pong-v5", 32
BUSY = (0, 10, 30, 100, 300, 1000)  # µs
PART, OFTEN = 5, 10  # local steps for which each part of a round is measured, and how often between two rounds

Call = Callable[[], Any]


def interleaved(
    parts: dict[str, Call], repeats: int, short: dict[str, Call] | None = None
) -> tuple[dict[str, float], dict[str, float]]:
    """CPU seconds and seconds of one call of each part: medians over rounds in which all take turns.

    Between two such rounds the `short` ones take OFTEN turns of their own.
    """
    short = short or {}
    for call in (*short.values(), *parts.values()):
        jax.block_until_ready(call())
    cpu: dict[str, list[float]] = {name: [] for name in (*short, *parts)}
    wall: dict[str, list[float]] = {name: [] for name in (*short, *parts)}
    for _ in range(repeats):
        for name, call in [*short.items()] * OFTEN + [*parts.items()]:
            at, at_cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(call())
            wall[name].append(time.perf_counter() - at)
            cpu[name].append(time.process_time() - at_cpu)
    middle = [{name: float(np.median(times)) for name, times in kind.items()} for kind in (cpu, wall)]
    return middle[0], middle[1]


def sampling(env: Env, algorithm: Algorithm, agents: int, step: int) -> Call:
    """The sampler, as training uses it, at this local step of a round."""
    sample = make_sampler(env, algorithm, agents)
    actor = algorithm.actor(algorithm.init(jax.random.key(0)))
    actors = jax.tree.map(lambda x: jnp.broadcast_to(x, (agents, *x.shape)), actor)
    keys, ids = jax.random.split(jax.random.key(0), agents), jnp.arange(agents)
    sample(actors, keys, ids, jnp.int32(0))
    return lambda: sample(actors, keys, ids, jnp.int32(step))


def training(env: Env, algorithm: Algorithm, agents: int) -> Call:
    """A round: sampling, value network, gradients, steps, merge."""
    engine = make_engine("inprocess", algorithm, env, agents, seed=0)
    state = [engine.start()]

    def one_round() -> None:
        state[0], _ = engine.round(state[0], 2)

    return one_round


def open_loop(sample: Call) -> Call:
    """CHEETAH_STEPS environment steps of every copy in one call, with the controls of a sample."""
    import mujoco
    from mujoco import rollout

    model, n = tasks.load(CHEETAH), AGENTS * COLUMNS
    skip, threads = tasks.TASKS[CHEETAH].frame_skip, len(os.sched_getaffinity(0))
    pool, data = rollout.Rollout(nthread=threads), [mujoco.MjData(model) for _ in range(threads)]
    rng = np.random.default_rng(0)
    start = np.zeros(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS))
    mujoco.mj_getState(model, data[0], start, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    given = np.tanh(np.asarray(sample().action)).swapaxes(1, 2)  # [agents, columns, time, controls]
    control = given.reshape(n, CHEETAH_STEPS, model.nu).astype(float).repeat(skip, axis=1)
    state = np.tile(start, (n, 1)) + rng.normal(0, 1e-3, (n, start.size))
    return lambda: pool.rollout(model, data, state, control, nstep=CHEETAH_STEPS * skip)


def measure_mujoco() -> dict[str, float]:
    """Sampling and training as fractions of the open loop."""
    env = envs.make(CHEETAH, horizon=CHEETAH_STEPS)
    config = build(algorithms.config_class("mfpo"), CHEETAH_CONFIG, "here")
    algorithm = algorithms.make("mfpo", config, env.spec, AGENTS)
    sample = sampling(env, algorithm, AGENTS, 0)
    parts = {"open loop": open_loop(sample), "sampling": sample, "training": training(env, algorithm, AGENTS)}
    cpu, wall = interleaved(parts, repeats=5)
    steps = AGENTS * COLUMNS * CHEETAH_STEPS
    return {
        "open loop, steps per CPU-second": round(steps / cpu["open loop"]),
        "open loop, steps per second": round(steps / wall["open loop"]),
    } | {
        f"{name}, steps {words}, of the open loop": round(of["open loop"] / of[name], 3)
        for name in ("sampling", "training")
        for words, of in (("per CPU-second", cpu), ("per second", wall))
    }


def bare_games(games: int) -> dict[str, Call]:
    """ALE's vectoriser: so many games begin, and make a step."""
    from ale_py.vector_env import AtariVectorEnv

    rom, actions = atari.load(PONG)
    console = AtariVectorEnv(rom, num_envs=games, stack_num=1, repeat_action_probability=0.25)
    console.reset(seed=0)
    rng = np.random.default_rng(0)

    return {
        "reset": lambda: console.reset(seed=0),
        "games": lambda: console.step(rng.integers(actions, size=games))[1],
    }


def bare_network(algorithm: Algorithm, agents: int) -> dict[str, Call]:
    """The passes through the network, on noise: a frame of every game; and all frames of a local step.

    The latter once for every agent, as they learn one after the other, and in blocks, the fastest way we know.
    """
    plan = algorithm.plan
    network: Network = algorithm.actor(algorithm.init(jax.random.key(0))).network
    everyones = jax.tree.map(lambda x: jnp.broadcast_to(x, (agents, *x.shape)) + 0, network)
    frames = jax.random.randint(jax.random.key(1), (agents, plan.episodes, 4, 84, 84), 0, 255, jnp.uint8)
    shape = (plan.segment * plan.episodes // BLOCK, BLOCK, 4, 84, 84)
    many = arrange(jax.random.randint(jax.random.key(1), shape, 0, 255, jnp.uint8))
    weights = jax.random.normal(jax.random.key(2), (UNITS,))
    look = jax.jit(jax.vmap(lambda net, x: see(net.trunk, arrange(x))))
    features = jax.jit(lambda net, many: jax.lax.map(lambda x: see(net.trunk, x), many))

    @jax.jit
    def gradient(net: Network, many: Array) -> Network:
        def add(total: Network, x: Array) -> tuple[Network, None]:
            return trees.add(total, jax.grad(lambda net: jnp.sum(see(net.trunk, x) @ weights))(net)), None

        return jax.lax.scan(add, trees.zeros_like(net), many)[0]

    return {
        "forward": lambda: look(everyones, frames),
        "features": lambda: [features(network, many) for _ in range(agents)],
        "gradient": lambda: [gradient(network, many) for _ in range(agents)],
    }


def measure_atari() -> dict[str, float]:
    """What sampling and training cost on top of simulator and network."""
    env = envs.make(PONG)
    settings, config = resolve_options({"env": PONG})
    agents = settings.agents
    algorithm = algorithms.make("mfpo", config, env.spec, agents)
    plan = algorithm.plan
    parts = bare_games(agents * plan.episodes) | bare_network(algorithm, agents)
    of_a_round = {"reset": parts.pop("reset"), "training": training(env, algorithm, agents)}
    games, forward = parts["games"], parts["forward"]
    parts["games and forward in turns"] = lambda: (games(), jax.block_until_ready(forward()))
    for name in ("games", "forward", "games and forward in turns"):  # as often as a local step has steps
        parts[name] = lambda call=parts[name]: [call() for _ in range(plan.segment)]
    parts["sampling"] = sampling(env, algorithm, agents, 1)
    as_long = {name: lambda call=call: [call() for _ in range(PART)] for name, call in parts.items()}
    cpu, wall = interleaved(of_a_round, repeats=3, short=as_long)
    a_step = agents * plan.episodes * plan.segment
    for of in (cpu, wall):
        for name in of:
            of[name] /= a_step * (plan.local_steps if name in of_a_round else PART)
    result = {f"{name}, CPU-ms per agent step": round(1e3 * cpu[name], 3) for name in cpu}
    for words, of in (("CPU seconds", cpu), ("seconds", wall)):
        learning = of["reset"] + of["features"] + 2 * of["gradient"]
        for how, floor in (
            ("in turns", of["games and forward in turns"]),
            ("each by itself", of["games"] + of["forward"]),
        ):
            result[f"sampling, {words}, over games and forward {how}"] = round(of["sampling"] / floor, 3)
            result[f"training, {words}, over games and forward {how} and the other passes"] = round(
                of["training"] / (floor + learning), 3
            )
    return result


def measure_memory() -> dict[str, float]:
    """Peak memory of two local steps with ten agents and twenty games each."""
    env = envs.make(PONG)
    _, config = resolve_options({"env": PONG, "trajectories": COLUMNS, "env_steps": COLUMNS * 16, "local_steps": 2})
    training(env, algorithms.make("mfpo", config, env.spec, AGENTS), AGENTS)()
    return {"peak memory, GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)}


def measure_processes() -> dict[str, float]:
    """How many times as fast two processes sample as this one, by how long a step of the environment takes."""
    parts: dict[str, Call] = {}
    for spent in BUSY:
        for processes in (0, 2):
            env = envs.make("busy:Busy-v0", world=f"microseconds={spent}", agents=AGENTS, processes=processes)
            config = build(algorithms.config_class("mfpo"), {"trajectories": 5}, "here")
            algorithm = algorithms.make("mfpo", config, env.spec, AGENTS)
            parts[f"{spent} {processes}"] = sampling(env, algorithm, AGENTS, 0)
    _, wall = interleaved(parts, repeats=7)
    return {f"a step takes {n} µs: times as fast": round(wall[f"{n} 0"] / wall[f"{n} 2"], 2) for n in BUSY}


def main() -> None:
    """Measure, print, write."""
    kinds = {
        "mujoco": measure_mujoco,
        "atari": measure_atari,
        "memory": measure_memory,
        "processes": measure_processes,
    }
    if len(sys.argv) != 2 or sys.argv[1] not in kinds:
        sys.exit(f"usage: python {sys.argv[0]} {'|'.join(kinds)}")
    machine.prepare(CHEETAH if sys.argv[1] == "mujoco" else PONG)
    result = kinds[sys.argv[1]]()
    for name, value in result.items():
        print(f"{name:60s} {value:>14,}")
    (RESULTS / f"speed-{sys.argv[1]}.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
