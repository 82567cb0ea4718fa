"""The Python interface: what `import mfpo` offers, in terms of the rooms behind it."""

import os
from typing import Any

from mfpo.runs import training
from mfpo.runs.policy import load_policy
from mfpo.runs.settings import resolve_options
from mfpo.runs.training import Callback, Run, resume

__all__ = ["evaluate", "load_policy", "resume", "train"]


def train(
    env: str, *, out: str | os.PathLike[str] | None = None, callback: Callback | None = None, **options: Any
) -> Run:
    """Train on `env`, with `options` as `mfpo train` has flags: agents=10, local_steps=5, preset="paper".

    `callback(row)` is called after every round with its line of metrics.jsonl. The run directory is `out`, or a free
    name below runs/.
    """
    settings, config = resolve_options({"env": env, **options})
    return training.train(settings, config, out=out, callback=callback)


def evaluate(
    run: Run | str | os.PathLike[str], episodes: int | None = None, seed: int | None = None, greedy: bool = False
) -> dict[str, Any]:
    """The score of a run's final policy on fresh episodes: {"mean", "std", "episodes", "returns", ...}."""
    path = run.path if isinstance(run, Run) else run
    return training.evaluate_run(path, episodes=episodes, seed=seed, greedy=greedy)
