"""The settings of every algorithm that samples a batch of trajectories in each of its local steps."""

from dataclasses import dataclass

from mfpo.config import option, validate
from mfpo.learning.timeline import segment_length


@dataclass(frozen=True)
class BatchConfig:
    """How much is sampled, and how far ahead it counts."""

    local_steps: int = option(10, "local steps per round", symbol="K", least=1, most=10**6)
    trajectories: int = option(20, "trajectories per local step and agent", symbol="D", least=1, most=10**6)
    env_steps: int = option(0, "environment steps per local step and agent, in D segments; 0: whole episodes", least=0)
    gamma: float = option(0.99, "discount factor", symbol="γ", above=0, most=1)

    @property
    def segment(self) -> int:
        """Steps in each of D segments. One may hold several episodes; the value where it is cut stands for the rest."""
        return segment_length(self.env_steps, self.trajectories)

    def __post_init__(self) -> None:
        """Check ranges."""
        validate(self)
