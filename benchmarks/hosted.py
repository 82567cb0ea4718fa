"""How far is training on MuJoCo from the bare simulator? All parts interleaved in one run; compare the ratios.

    python benchmarks/hosted.py           # prints a table, writes results/speed-mujoco.json

The ceiling is `mujoco.rollout` with random controls, open loop: no policy, no rewards, nothing recorded. Everything
steps 200 HalfCheetahs, ten agents with twenty each, with policy and value networks of 2×256 units.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mfpo import algorithms, envs
from mfpo.config import build
from mfpo.envs import mujoco as tasks
from mfpo.federation import make_engine
from mfpo.hosted import episode_sampler

RESULTS = Path(__file__).parent.parent / "results" / "speed-mujoco.json"
ENV, AGENTS, COLUMNS, STEPS, REPEATS = "HalfCheetah-v5", 10, 20, 1000, 3
CONFIG = {"local_steps": 1, "trajectories": COLUMNS, "hidden": [256, 256], "value_hidden": [256, 256]}


def open_loop() -> Callable[[], Any]:
    """STEPS environment steps of every copy in one call."""
    import mujoco
    from mujoco import rollout

    model, n = tasks.load(ENV), AGENTS * COLUMNS
    substeps = STEPS * tasks.TASKS[ENV].frame_skip
    threads = len(os.sched_getaffinity(0))
    pool, data = rollout.Rollout(nthread=threads), [mujoco.MjData(model) for _ in range(threads)]
    rng = np.random.default_rng(0)
    start = np.zeros(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS))
    mujoco.mj_getState(model, data[0], start, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    control = rng.uniform(-1, 1, (n, STEPS, model.nu)).repeat(tasks.TASKS[ENV].frame_skip, axis=1)
    state = np.tile(start, (n, 1)) + rng.normal(0, 1e-3, (n, start.size))
    return lambda: pool.rollout(model, data, state, control, nstep=substeps)


def sampling() -> Callable[[], Any]:
    """The sampler, as training uses it."""
    env, algorithm = world()
    sample = episode_sampler(env, algorithm.act, AGENTS, COLUMNS)
    actor = algorithm.actor(algorithm.init(jax.random.key(0)))
    actors = jax.tree.map(lambda x: jnp.broadcast_to(x, (AGENTS, *x.shape)), actor)
    keys = jax.random.split(jax.random.key(0), AGENTS)
    return lambda: sample(actors, keys, jnp.arange(AGENTS), jnp.int32(0))


def training() -> Callable[[], Any]:
    """A round of one local step: sampling, value network, gradients, natural step, merge."""
    env, algorithm = world()
    engine = make_engine("inprocess", algorithm, env, AGENTS, seed=0)
    state = [engine.start()]

    def one_round() -> None:
        state[0], _ = engine.round(state[0], 2)

    return one_round


def world() -> tuple[Any, Any]:
    env = envs.make(ENV, horizon=STEPS)
    return env, algorithms.make("mfpo", build(algorithms.config_class("mfpo"), CONFIG, "here"), env.spec, AGENTS)


def main() -> None:
    """Measure, print, write."""
    jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    parts = {"open loop": open_loop(), "sampling": sampling(), "training": training()}
    for call in parts.values():
        call()
    cpu: dict[str, list[float]] = {name: [] for name in parts}
    wall: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(REPEATS):
        for name, call in parts.items():
            at, at_cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(call())
            wall[name].append(time.perf_counter() - at)
            cpu[name].append(time.process_time() - at_cpu)
    steps = AGENTS * COLUMNS * STEPS
    middle = {(kind, name): float(np.median(of[name])) for kind, of in (("cpu", cpu), ("wall", wall)) for name in parts}
    result = {"open loop, steps per CPU-second": round(steps / middle["cpu", "open loop"])}
    result |= {"open loop, steps per second": round(steps / middle["wall", "open loop"])}
    for name in ("sampling", "training"):
        for kind, words in (("cpu", "per CPU-second"), ("wall", "per second")):
            result[f"{name}, steps {words}, of the open loop"] = round(
                middle[kind, "open loop"] / middle[kind, name], 3
            )
    for name, value in result.items():
        print(f"{name:60s} {value:>14,}")
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
