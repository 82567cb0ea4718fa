"""mfpo: federated reinforcement learning. Many agents, each with its own environment, learn one policy together.

    import mfpo

    run = mfpo.train("CartPole-v1", agents=10)
    action = run.policy.act(observation)

The names below are imported on first use, so that `mfpo --help` does not wait for JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mfpo.algorithms import list_algorithms
    from mfpo.envs import list_environments
    from mfpo.errors import MfpoError
    from mfpo.runs.api import evaluate, load_policy, resume, train
    from mfpo.runs.policy import Policy
    from mfpo.runs.training import Run

__all__ = [
    "MfpoError",
    "Policy",
    "Run",
    "evaluate",
    "list_algorithms",
    "list_environments",
    "load_policy",
    "resume",
    "train",
]

_HOMES = {
    "MfpoError": "mfpo.errors",
    "Policy": "mfpo.runs.policy",
    "Run": "mfpo.runs.training",
    "list_algorithms": "mfpo.algorithms",
    "list_environments": "mfpo.envs",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mfpo' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "mfpo.runs.api")), name)


def __dir__() -> list[str]:
    return __all__
