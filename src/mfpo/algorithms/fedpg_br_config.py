"""The settings of FedPG-BR. The module `fedpg_br` says what they mean."""

from dataclasses import dataclass

from mfpo.config import option, validate
from mfpo.errors import ConfigError
from mfpo.learning import estimators
from mfpo.learning.nets import ACTIVATIONS
from mfpo.learning.policies import SQUASHES
from mfpo.learning.timeline import segment_length


@dataclass(frozen=True)
class Config:
    """Every choice of the algorithm; the defaults suit an unknown environment, presets suit known ones."""

    trajectories: int = option(20, "trajectories per round and agent", symbol="B_max", least=1, most=10**6)
    least_trajectories: int = option(0, "least number of them that is used; 0: all", symbol="B_min", least=0)
    server_trajectories: int = option(4, "trajectories of a step on the server", symbol="b", least=1, most=10**6)
    server_steps: int = option(100, "upper bound of the steps on the server in a round", least=1, most=10**6)
    env_steps: int = option(
        0, "environment steps per round and agent, in B_max segments; the server's are as long; 0: episodes", least=0
    )
    gamma: float = option(0.99, "discount factor", symbol="γ", above=0, most=1)

    suspected: float = option(0.0, "share of the agents that may be Byzantine", symbol="α", least=0, most=1)
    sigma: float = option(
        0.0, "what one trajectory may add to a gradient; 0: judged by how far apart they are", symbol="σ", least=0
    )
    delta: float = option(0.6, "chance that an honest one is further off", symbol="δ", above=0, most=1)
    weights: str = option("action", "product of probability ratios per ...", symbol="ω", choices=estimators.WEIGHTS)
    weight_cap: float = option(2.0, "upper bound of an importance weight; inf is the paper's", above=0)

    stepsize: float = option(3e-3, "Adam stepsize", symbol="η", above=0, most=1e6)
    stepsize_decay: float = option(1.0, "factor on the stepsize at every step", above=0)
    adam_beta1: float = option(0.9, "decay of Adam's first moment", symbol="β₁", least=0, most=0.999999)
    adam_beta2: float = option(0.999, "decay of Adam's second moment", symbol="β₂", least=0, most=0.999999)

    entropy: float = option(0.0, "weight of the policy's entropy in the objective, per step", least=0)
    baseline: str = option(
        "value", "what is subtracted from rewards to go", choices=("none", "episode", "time", "value")
    )
    normalise_advantages: bool = option(True, "standardise advantages over a batch")
    gae_lambda: float = option(0.97, "bias against variance, for --baseline value", symbol="λ", least=0, most=1)
    value_hidden: tuple[int, ...] = option((64, 64), "hidden units of the value network", least=1)
    value_updates: int = option(40, "Adam steps of the value network per round", least=1)
    value_samples: int = option(512, "states per Adam step of the value network", least=1)
    value_stepsize: float = option(1e-3, "Adam stepsize of the value network", above=0)
    value_weight: float = option(0.5, "of the value's squared error in what shapes the trunk of frames", least=0)

    hidden: tuple[int, ...] = option((64, 64), "hidden units of the policy network", least=1)
    activation: str = option("tanh", "activation of both networks", choices=tuple(ACTIVATIONS))
    initial_std: float = option(1.0, "first standard deviation of a continuous action", above=0)
    least_std: float = option(0.0, "added to it, as variances add: exploration that does not die out", least=0)
    squash: str = option("tanh", "how a Gaussian sample becomes a bounded action", choices=SQUASHES)
    normalise_observations: bool = option(True, "standardise observations with shared running statistics")

    @property
    def segment(self) -> int:
        """Steps in each of B_max segments, as in `batch_config`."""
        return segment_length(self.env_steps, self.trajectories)

    def __post_init__(self) -> None:
        """Check ranges, then the combinations that make no sense."""
        validate(self)
        if self.env_steps and (self.baseline != "value" or self.weights not in estimators.OF_ONE_STEP):
            raise ConfigError(estimators.SEGMENTS_NEED)
        if self.least_trajectories > self.trajectories:
            given = f"--least-trajectories is {self.least_trajectories}"
            raise ConfigError(f"{given}, but it must be at most --trajectories, which is {self.trajectories}.")
