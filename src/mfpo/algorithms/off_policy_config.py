"""The settings that algorithms with a replay share."""

from dataclasses import dataclass

from mfpo.config import option, validate
from mfpo.learning.nets import ACTIVATIONS
from mfpo.learning.timeline import segment_length


@dataclass(frozen=True)
class OffPolicyConfig:
    """How much is sampled, remembered and learned from, and with which networks."""

    local_steps: int = option(10, "local steps per round", symbol="K", least=1, most=10**6)
    trajectories: int = option(1, "trajectories per local step and agent", symbol="D", least=1, most=10**6)
    env_steps: int = option(0, "environment steps per local step and agent, in D segments; 0: whole episodes", least=0)
    gamma: float = option(0.99, "discount factor", symbol="γ", above=0, most=1)

    capacity: int = option(
        0, "steps an agent's replay holds; 0: 50 episodes, at most 100,000 steps", least=0, most=10**8
    )
    warmup: int = option(100, "environment steps of an agent before its first update", least=0)
    updates_per_step: float = option(0.5, "updates for every environment step", above=0)
    samples: int = option(64, "steps per update", least=1)
    stepsize: float = option(1e-3, "Adam stepsize", symbol="α", above=0)
    stepsize_decay: float = option(1.0, "factor on the stepsize at every local step", above=0)
    target_rate: float = option(0.005, "how fast the target follows, per update", symbol="τ", above=0, most=1)

    hidden: tuple[int, ...] = option((64, 64), "hidden units of each network", least=1)
    activation: str = option("relu", "activation of the networks", choices=tuple(ACTIVATIONS))
    normalise_observations: bool = option(True, "standardise observations (not frames) with shared running statistics")

    @property
    def segment(self) -> int:
        """Steps in each of D segments."""
        return segment_length(self.env_steps, self.trajectories)

    def __post_init__(self) -> None:
        """Check ranges."""
        validate(self)
