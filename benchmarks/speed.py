"""How fast is a federation, against the bare environment? All parts in one run; compare the ratios, not the seconds.

    python benchmarks/speed.py            # prints a table, writes results/speed.json

Figures are per CPU-second of the process (all threads), so that they hold on a busy machine.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mfpo import algorithms, envs
from mfpo.federation import make_engine
from mfpo.rollout import pure_sampler
from mfpo.runs.settings import resolve

RESULTS = Path(__file__).parent.parent / "results" / "speed.json"
ENV, AGENTS, EPISODES, ROUNDS = "CartPole-v1", 10, 20, 30


def cpu_seconds(call: Callable[[], Any], repeats: int) -> float:
    """CPU seconds of one call, the median of several after a first one that compiles."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        start = time.process_time()
        jax.block_until_ready(call())
        times.append(time.process_time() - start)
    return float(np.median(times))


def simulator(act: Callable[..., Any], params: Any) -> float:
    """Environment steps per CPU-second of the sampler with a given `act`, in a world whose episodes never end early."""
    env = envs.make(ENV)
    endless = env._replace(step=lambda s, a, k: (env.step(s, a, k)[0] * 0.99, jnp.float32(1.0), jnp.bool_(False)))
    sample = jax.jit(pure_sampler(endless, act, EPISODES))
    block = jax.tree.map(lambda x: jnp.broadcast_to(x, (AGENTS, *x.shape)), params)
    keys = jax.random.split(jax.random.key(0), AGENTS)
    return AGENTS * EPISODES * env.spec.horizon / cpu_seconds(lambda: sample(block, keys, jnp.arange(AGENTS)), 20)


def bare_loop() -> float:
    """The ceiling: random actions in a fixed scan over the same number of copies, nothing recorded."""
    env = envs.make(ENV)
    copies = AGENTS * EPISODES

    def body(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
        state, key = carry
        key, now = jax.random.split(key)
        action = jax.random.bernoulli(now, shape=(copies,)).astype(jnp.int32)
        state, _, _ = jax.vmap(lambda s, a: env.step(s, a, now))(state, action)
        return (state * 0.99, key), None

    @jax.jit
    def run(key: Any) -> Any:
        state = jax.vmap(env.reset)(jax.random.split(key, copies))
        return jax.lax.scan(body, (state, key), None, length=env.spec.horizon)[0][0]

    return copies * env.spec.horizon / cpu_seconds(lambda: run(jax.random.key(0)), 20)


def training(agents: int, rounds: int) -> dict[str, float]:
    """Live environment steps per CPU-second of a whole run with the preset; with and without the first round."""
    settings, config = resolve({"env": ENV, "agents": agents, "rounds": rounds}, {})
    env = envs.make(ENV)
    algorithm = algorithms.make(settings.algorithm, config, env.spec, agents)
    start = time.process_time()
    engine = make_engine("inprocess", algorithm, env, agents, seed=0)
    state, steps, cpu = engine.start(), [], []
    for number in range(1, rounds + 1):
        state, log = engine.round(state, number)
        steps.append(int(log.lengths.sum()))
        cpu.append(time.process_time() - start)
    return {
        "whole": sum(steps) / cpu[-1],
        "compiled": sum(steps[1:]) / (cpu[-1] - cpu[0]) if rounds > 1 else float("nan"),
        "first_round_cpu_seconds": cpu[0],
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def in_subprocess(call: str) -> Any:
    """The value of an expression over this module's functions, in a process of its own (memory, compilation)."""
    code = (
        f"import json, sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import speed; print(json.dumps({call}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return json.loads(out)


def first_line() -> float:
    """Wall seconds from `mfpo train` to the line of round 1, the second time: a warm install."""
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "mfpo", "train", ENV, "--rounds", "1", "--out", f"{folder}/run"]
            start = time.perf_counter()
            with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
                assert process.stderr is not None
                seconds = next(time.perf_counter() - start for line in process.stderr if line.startswith("round 1"))
                process.stderr.read()
    return seconds


def main() -> None:
    """Measure, print, write."""
    _, config = resolve({"env": ENV, "agents": AGENTS}, {})
    algorithm = algorithms.make("mfpo", config, envs.make(ENV).spec, AGENTS)
    params = algorithm.actor(algorithm.init(jax.random.key(0)))
    ceiling = bare_loop()
    sampling = simulator(algorithm.act, params)
    run = in_subprocess(f"speed.training({AGENTS}, {ROUNDS})")
    many = in_subprocess("speed.training(500, 3)")
    result = {
        "bare environment loop, steps per CPU-second": round(ceiling),
        "sampling with the policy, of the bare loop": round(sampling / ceiling, 3),
        "training without compilation, of the bare loop": round(run["compiled"] / ceiling, 3),
        "training without compilation, steps per CPU-second": round(run["compiled"]),
        f"whole run of {ROUNDS} rounds, steps per CPU-second": round(run["whole"]),
        "first round with compilation, CPU-seconds": round(run["first_round_cpu_seconds"], 1),
        "500 agents, peak memory in GB": round(many["peak_gb"], 2),
        "mfpo train, seconds to the first round's line": round(first_line(), 1),
    }
    for name, value in result.items():
        print(f"{name:60s} {value:>14,}")
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
