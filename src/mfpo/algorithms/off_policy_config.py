"""The settings that algorithms with a replay share."""

from dataclasses import dataclass

from mfpo.algorithms.batch_config import BatchConfig
from mfpo.config import option
from mfpo.learning.nets import ACTIVATIONS


@dataclass(frozen=True)
class OffPolicyConfig(BatchConfig):
    """How much is remembered and learned from, and with which networks."""

    trajectories: int = option(1, "trajectories per local step and agent", symbol="D", least=1, most=10**6)

    capacity: int = option(
        0, "steps an agent's replay holds; 0: 50 episodes, at most 100,000 steps", least=0, most=10**8
    )
    warmup: int = option(100, "environment steps of an agent before its first update", least=0)
    lookahead: int = option(1, "rewards summed before the estimate of what follows", symbol="n", least=1, most=100)
    updates_per_step: float = option(0.5, "updates for every environment step", above=0)
    samples: int = option(64, "steps per update", least=1)
    stepsize: float = option(1e-3, "Adam stepsize", symbol="α", above=0, most=1e6)
    stepsize_decay: float = option(1.0, "factor on the stepsize at every local step", above=0)
    target_rate: float = option(0.005, "how fast the target follows, per update", symbol="τ", above=0, most=1)

    hidden: tuple[int, ...] = option((64, 64), "hidden units of each network", least=1)
    activation: str = option("relu", "activation of the networks", choices=tuple(ACTIVATIONS))
    normalise_observations: bool = option(True, "standardise observations with shared running statistics")
