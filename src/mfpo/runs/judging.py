"""How good a policy is: of a finished run, or of one in the middle."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mfpo import federation
from mfpo.errors import RunError
from mfpo.runs import checkpoint, directory, files, metrics, summary
from mfpo.runs.building import make_algorithm, make_env
from mfpo.runs.policy import WEIGHTS, Origin, Policy, check_fit, load_policy
from mfpo.runs.settings import Settings
from mfpo.types import Algorithm, Env


def latest_policy(path: str | os.PathLike[str], seed: int = 0) -> tuple[Policy, int]:
    """The policy of a run, and after how many rounds; of one that is not finished, that of its newest checkpoint.

    Without summary and checkpoints, a policy is taken to be of all rounds: before, there is none.
    """
    place = Path(path)
    settings, config = directory.read_config(place)
    folder, outcome = place / directory.CHECKPOINTS, summary.read(place)
    done = outcome["rounds"] if outcome else 0
    if (place / WEIGHTS).exists() and checkpoint.latest_round(folder) <= done:
        return load_policy(place, seed), done or settings.rounds
    env = make_env(settings)
    algorithm = make_algorithm(settings, config, env)
    template = jax.eval_shape(lambda: algorithm.init(jax.random.key(0)))
    said: list[str] = []
    server, progress = checkpoint.load(folder, template, said.append, "server")
    if not progress.round:
        why = "no policy yet: no round is over"
        if said:
            damages = [sentence.rpartition(";")[0] for sentence in said]  # without what training would do about it
            why = ". ".join(["no policy, for no checkpoint is sound", *damages])
        raise RunError(f"The run {place} has {why}. Train it with: {files.resume_command(place)}")
    origin = Origin(settings.algorithm, config, env.spec, settings.agents)
    return Policy(origin, algorithm, acting(algorithm, server), seed), progress.round


def evaluate_run(
    path: str | os.PathLike[str], episodes: int | None = None, seed: int | None = None, greedy: bool = False
) -> dict[str, Any]:
    """Judge a run's policy on fresh episodes; without arguments, on those of its summary. Writes nothing."""
    place = Path(path)
    settings, _ = directory.read_config(place)
    settings = dataclasses.replace(
        settings,
        evaluation_episodes=settings.evaluation_episodes if episodes is None else episodes,
        seed=settings.seed if seed is None else seed,
    )
    policy, rounds = latest_policy(place)
    env = make_env(settings)
    check_fit(policy.spec, env.spec)
    judged = judge(policy.algorithm, env, policy.params, settings, greedy)
    return {**judged, "seed": settings.seed, "greedy": greedy, "rounds": rounds}


def acting(algorithm: Algorithm, server: Any) -> Any:
    """What a policy acts with, off the engine's devices: on one, and with the very arrays it will be loaded with."""
    return jax.tree.map(jnp.array, jax.device_get(algorithm.actor(server)))


def returns_of(
    algorithm: Algorithm, env: Env, params: Any, settings: Settings, greedy: bool = False
) -> list[NDArray[np.float64]]:
    """Of fresh episodes; if the agents' worlds differ, in each of them."""
    return [
        federation.evaluate(algorithm, env, params, settings.seed, settings.evaluation_episodes, greedy, agent)
        for agent in range(len(env.worlds) or 1)
    ]


def judge(algorithm: Algorithm, env: Env, params: Any, settings: Settings, greedy: bool = False) -> dict[str, Any]:
    """The score on fresh episodes; if the agents' worlds differ, in each of them, and over all of them together."""
    of_agents = returns_of(algorithm, env, params, settings, greedy)
    returns = np.concatenate(of_agents)
    result = {
        "mean": metrics.plain(np.mean(returns, dtype=np.float64)),
        "std": metrics.plain(np.std(returns, dtype=np.float64)),
        "episodes": len(returns),
        "returns": [metrics.plain(value) for value in returns],
    }
    if env.worlds:
        result["agents"] = [metrics.plain(np.mean(x, dtype=np.float64)) for x in of_agents]
    return result
