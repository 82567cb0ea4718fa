"""The Python interface: what `import mfpo` offers, in terms of the rooms behind it.

As on the command line, JAX is told how to use this machine, for the whole program: every core is a device, a program
runs in the thread that calls it, and compiled programs are kept below ~/.cache/mfpo. A program that has used JAX before
keeps what it has, and so does one that says otherwise in its environment: JAX_NUM_CPU_DEVICES,
JAX_CPU_ENABLE_ASYNC_DISPATCH, JAX_COMPILATION_CACHE_DIR and, for games, any MALLOC_… variable (see `machine`).
"""

import os
from pathlib import Path
from typing import Any

from mfpo.runs import directory, judging, machine, training
from mfpo.runs.policy import Policy
from mfpo.runs.policy import load_policy as load_files
from mfpo.runs.settings import resolve_options
from mfpo.runs.training import Callback, Run

__all__ = ["evaluate", "load_policy", "resume", "train"]


def train(
    env: str, *, out: str | os.PathLike[str] | None = None, callback: Callback | None = None, **options: Any
) -> Run:
    """Train on `env`, with `options` as `mfpo train` has flags: agents=10, local_steps=5, preset="paper".

    `callback(row)` is called after every round with its line of metrics.jsonl. The run directory is `out`, or a free
    name below runs/.
    """
    settings, config = resolve_options({"env": env, **options})
    machine.prepare(settings.env)
    return training.train(settings, config, out=out, callback=callback)


def resume(run: str | os.PathLike[str], rounds: int | None = None, callback: Callback | None = None) -> Run:
    """Go on with a run where it was stopped, to the very result it would have had; or on to more `rounds`."""
    machine.prepare(directory.read_config(Path(run))[0].env)
    return training.resume(run, rounds, callback)


def load_policy(path: str | os.PathLike[str], seed: int = 0) -> Policy:
    """The policy of a run, or of a policy.safetensors with its policy.json beside it.

    A run that is not finished gives that of its newest checkpoint.
    """
    is_run = os.path.isfile(Path(path) / directory.CONFIG)  # unlike the method of Path, this never raises
    return judging.latest_policy(path, seed)[0] if is_run else load_files(path, seed)


def evaluate(
    run: Run | str | os.PathLike[str], episodes: int | None = None, seed: int | None = None, greedy: bool = False
) -> dict[str, Any]:
    """The score of a run's policy on fresh episodes: {"mean", "std", "episodes", "returns", ...}.

    A run that is not finished is judged by its newest checkpoint; "rounds" says how many were done.
    """
    path = Path(run.path if isinstance(run, Run) else run)
    machine.prepare(directory.read_config(path)[0].env)
    return judging.evaluate_run(path, episodes=episodes, seed=seed, greedy=greedy)
