"""The settings of MFPO. The module `mfpo` says what they mean."""

from dataclasses import dataclass

from mfpo.algorithms.batch_config import BatchConfig
from mfpo.config import option
from mfpo.errors import ConfigError
from mfpo.learning import estimators, steps
from mfpo.learning.nets import ACTIVATIONS
from mfpo.learning.policies import SQUASHES


@dataclass(frozen=True)
class Config(BatchConfig):
    """Every choice of the algorithm; the defaults suit an unknown environment, presets suit known ones."""

    initial_trajectories: int = option(
        0, "trajectories of the initial direction, a multiple of D; 0 means D (the theorem: D·K)", symbol="D̃", least=0
    )

    momentum: float = option(0.8, "momentum, for --momentum-rule constant; 0 is FedAvg-PG", symbol="ν", least=0, most=1)
    momentum_rule: str = option("constant", "how ν follows t; paper: 1-3α", choices=("constant", "paper", "theorem"))
    correction: str = option(
        "importance", "importance: the paper's; none: heavy-ball momentum", choices=("importance", "none")
    )
    weights: str = option("action", "product of probability ratios per ...", symbol="w", choices=estimators.WEIGHTS)
    weight_cap: float = option(2.0, "upper bound of an importance weight; inf is the paper's", above=0)
    server_adjustment: bool = option(True, "average directions too and take the K-th step on the server")

    step: str = option("natural", "the move along the direction; plain is the paper's", choices=steps.STEPS)
    stepsize: float = option(0.1, "length of a step, in the units of --step", symbol="α", above=0, most=1e6)
    step_memory: float = option(
        0.99, "per step; a step is short if u is, against the largest recent u", least=0, most=1
    )
    stepsize_decay: float = option(0.99, "factor on the stepsize at every step t", above=0)
    stepsize_rule: str = option("geometric", "how α follows t: geometric, theorem", choices=("geometric", "theorem"))
    theorem_smoothness: float = option(1.0, "of the theorem's schedules", symbol="L̃", least=1e-9, most=1e9)
    theorem_sigma: float = option(1.0, "of the theorem's schedules; it cancels", symbol="σ_g", least=1e-9, most=1e9)
    adam_beta1: float = option(0.9, "decay of the first moment, for --step adam", symbol="β₁", least=0, most=0.999999)
    adam_beta2: float = option(0.99, "decay of the second moment, for --step adam", symbol="β₂", least=0, most=0.999999)
    fisher_samples: int = option(512, "states in a Fisher-vector product, for --step natural", least=1)
    cg_iterations: int = option(10, "conjugate-gradient iterations, for --step natural", least=1)
    cg_damping: float = option(0.1, "added to the Fisher diagonal, for --step natural", above=0)

    estimator: str = option("gpomdp", "whole return or reward to go", choices=("reinforce", "gpomdp"))
    baseline: str = option(
        "value", "what is subtracted from returns", symbol="b", choices=("none", "constant", "time", "value")
    )
    discount_states: bool = option(False, "keep the factor γ^h of the discounted objective in front of step h")
    entropy: float = option(0.0, "weight of the policy's entropy in the objective, per step", least=0)
    normalise_advantages: bool = option(True, "standardise advantages over a batch")
    advantage_cap: float = option(
        float("inf"), "bound on the size of a standardised advantage: no step is one event's", above=0
    )
    gae_lambda: float = option(0.97, "bias against variance, for --baseline value", symbol="λ", least=0, most=1)
    value_hidden: tuple[int, ...] = option((64, 64), "hidden units of the value network", least=1)
    value_updates: int = option(20, "Adam steps of the value network per local step", least=1)
    value_samples: int = option(512, "states per Adam step of the value network", least=1)
    value_stepsize: float = option(1e-3, "Adam stepsize of the value network", above=0)
    value_weight: float = option(
        0.5, "of the value's squared error in what shapes the trunk of frames, for --step adam", least=0
    )

    hidden: tuple[int, ...] = option((64, 64), "hidden units of the policy network", least=1)
    activation: str = option("tanh", "activation of both networks", choices=tuple(ACTIVATIONS))
    initial_std: float = option(1.0, "first standard deviation of a continuous action", above=0)
    least_std: float = option(0.0, "added to it, as variances add: exploration that does not die out", least=0)
    state_std: bool = option(False, "let it depend on the state: noise where nothing is learnt yet, none where all is")
    squash: str = option("tanh", "how a Gaussian sample becomes a bounded action", choices=SQUASHES)
    normalise_observations: bool = option(True, "standardise observations with shared running statistics")

    def __post_init__(self) -> None:
        """Check ranges, then the combinations that make no sense."""
        super().__post_init__()
        if self.initial_trajectories % self.trajectories:
            given = f"--initial-trajectories is {self.initial_trajectories}"
            raise ConfigError(f"{given}, but it must be a multiple of --trajectories, which is {self.trajectories}.")
        if self.estimator == "reinforce" and self.baseline == "value":
            instead = "use --baseline constant or --estimator gpomdp"
            raise ConfigError(f"--estimator reinforce has no value baseline; {instead}.")
        if self.env_steps and (self.baseline != "value" or self.weights not in estimators.OF_ONE_STEP):
            raise ConfigError(estimators.SEGMENTS_NEED)
        if self.env_steps and self.discount_states:
            raise ConfigError(
                "--discount-states counts the steps of an episode, which --env-steps cuts; leave out one."
            )
        if (self.momentum_rule == "theorem") != (self.stepsize_rule == "theorem"):
            raise ConfigError("--momentum-rule theorem and --stepsize-rule theorem belong together; set both or none.")
