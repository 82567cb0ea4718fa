"""What the local steps, the server and a whole round report."""

from typing import Any, NamedTuple

import jax
import numpy as np

from mfpo.errors import Diverged
from mfpo.federation.faults import Attendance
from mfpo.types import Array, Metrics


class StepLog(NamedTuple):
    """What the local steps of a block report; leading axes [steps, agents]."""

    returns: Array  # [.., D]
    lengths: Array  # [.., D]
    metrics: Metrics


class ServiceLog(NamedTuple):
    """What the server reports of a round."""

    merge: Metrics
    steps: Array | None = None  # calls of `refine`; None: the algorithm has none
    refine: StepLog | None = None  # leading axis [steps], or longer; None if there were none


class RoundLog(NamedTuple):
    """What a round reports, on the host; of the agents, those W that worked and tell what they saw."""

    returns: np.ndarray  # [steps, W, D] of every episode
    lengths: np.ndarray  # [steps, W, D]
    learn: dict[str, np.ndarray]  # [steps, W]
    worked: int  # agents
    answered: int  # agents whose upload came in time
    merge: dict[str, float]  # of a server that refines, also what it sampled in this round and the means over its steps


def host_log(
    log: StepLog,
    service: ServiceLog,
    attendance: Attendance,
    steps: int,
    byzantine: int = 0,
    tells: np.ndarray | None = None,
) -> RoundLog:
    """The log as NumPy arrays, without steps that did not take place and agents that were not there.

    If some keep to themselves what they saw, `tells` [N] says who does not. Raises `Diverged` if agents answered, but
    not one of them with finite numbers.
    """
    works, answers = (np.asarray(x) for x in attendance)
    shown = works if tells is None else tells
    rows: Any = jax.tree.map(lambda x: np.asarray(x)[:steps, shown], log)
    merge = {name: np.asarray(value).item() for name, value in service.merge.items() if name != "kept"}
    if answers.any() and merge.get("rejected") == answers.sum():
        raise Diverged("Training diverged: no agent sent finite numbers.")
    if "kept" in service.merge:
        merge |= _choice(np.asarray(service.merge["kept"]), answers, byzantine)
    counts = int(works.sum()), int(answers.sum())
    return RoundLog(rows.returns, rows.lengths, rows.metrics, *counts, merge | _refinements(service))


def _choice(kept: np.ndarray, answers: np.ndarray, byzantine: int) -> dict[str, float]:
    """How many uploads were used; where there are liars, also the precision and recall of leaving them out.

    Precision is NaN where nobody was left out, recall where no liar answered.
    """
    counts: dict[str, float] = {"kept": int(kept.sum())}
    if not byzantine:
        return counts
    lies = answers & (np.arange(len(kept)) < byzantine)
    out = answers & ~kept
    caught = int((lies & out).sum())
    return counts | {
        "filter_precision": caught / out.sum() if out.any() else np.nan,
        "filter_recall": caught / lies.sum() if lies.any() else np.nan,
    }


def _refinements(service: ServiceLog) -> dict[str, float]:
    """What a server sampled to refine with, in this round, and what came of it on average."""
    if service.steps is None:
        return {}
    steps = int(service.steps)
    if not steps or service.refine is None:
        return {"server_trajectories": 0, "server_env_steps": 0}
    rows: Any = jax.tree.map(lambda x: np.asarray(x, np.float64)[:steps], service.refine)
    return {name: float(np.mean(values)) for name, values in rows.metrics.items()} | {
        "server_trajectories": rows.returns.size,
        "server_env_steps": int(np.sum(rows.lengths)),
        "server_return_mean": float(np.mean(ended_returns(rows.returns))),
    }


def ended_returns(returns: np.ndarray) -> np.ndarray:
    """Those of segments in which an episode ended, for the others have none; a single NaN if there is none at all."""
    ended = returns[~np.isnan(returns)]
    return ended if ended.size else np.full(1, np.nan)
