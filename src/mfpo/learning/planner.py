"""What the theorem asks for: local steps, trajectories and rounds to a target, for a trade λ between K and D.

Theorem "convergence" sets K = (T/N²)^(λ/3), D = (T/N²)^((1-λ)/2) and D̃ = DK, up to constants; here the constants are 1
and both are rounded. The rounds are the fewest for which the bound of theorem "gradient bound" meets the target.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mfpo.config import option, validate
from mfpo.errors import ConfigError
from mfpo.learning import theory
from mfpo.learning.theory import Problem, Setting

BOUNDS: dict[str, Callable[[Setting, float, float, float], float]] = {
    "schedule": theory.schedule_bound,
    "printed": theory.gradient_bound,
}
NUMBER_BYTES = 4  # parameters travel as 32-bit floats, the step counter as a 32-bit integer
MOST_ROUNDS = 10**15


@dataclass(frozen=True)
class Assumptions:
    """What a plan stands on. The defaults are round numbers, not measurements."""

    agents: int = option(10, "number of agents", symbol="N", least=1, most=10**9)
    target_eps: float = option(
        0.05, "the average squared norm of the gradient of J to reach", symbol="ε", above=0, most=1e9
    )
    lambdas: tuple[float, ...] = option(
        (0.0, 0.25, 0.5, 0.75, 1.0), "trades between D (0) and K (1)", symbol="λ", least=0, most=1
    )
    local_steps: int = option(0, "local steps per round; 0: as the theorem says for λ", symbol="K", least=0, most=10**9)
    trajectories: int = option(
        0, "trajectories per local step and agent; 0: as the theorem says for λ", symbol="D", least=0, most=10**9
    )
    bound: str = option("schedule", "the theorem's, as printed or before its last estimates", choices=tuple(BOUNDS))

    gap: float = option(1.0, "what there is to gain: best expected return less the first policy's", above=0, most=1e12)
    sigma: float = option(1.0, "standard deviation of one trajectory's gradient", symbol="σ_g", above=0, most=1e12)
    smoothness: float = option(
        1.0, "smoothness of the problem; 0: the lemmas' worst case, from the next six", symbol="L̃", least=0, most=1e15
    )
    horizon: int = option(500, "steps of an episode, at most", symbol="H", least=1, most=10**9)
    gamma: float = option(0.99, "discount factor, below 1", symbol="γ", least=0, most=1)
    reward_bound: float = option(1.0, "rewards lie between 0 and this", symbol="R_max", above=0, most=1e9)
    beta1: float = option(1.0, "bound of the norm of ∇log π", symbol="β₁", above=0, most=1e9)
    beta2: float = option(1.0, "bound of the norm of ∇²log π", symbol="β₂", least=0, most=1e9)
    sigma_w: float = option(
        1.0, "standard deviation of a trajectory's importance weight", symbol="σ_w", least=0, most=1e9
    )
    parameters: int = option(386, "of the policy; 386 is CartPole's with 2×16 units", symbol="d", least=1, most=10**12)

    def __post_init__(self) -> None:
        """Check ranges, then what the formulas cannot take."""
        validate(self)
        if not self.lambdas:
            raise ConfigError("--lambdas is empty; give at least one number between 0 and 1.")
        if self.smoothness == 0 and self.gamma == 1:
            raise ConfigError("--gamma is 1, but the lemmas' constants divide by 1 - γ; give less, or --smoothness.")

    @property
    def overall_smoothness(self) -> float:
        """L̃, as given or from the lemmas."""
        if self.smoothness:
            return self.smoothness
        return theory.overall_smoothness(
            Problem(self.horizon, self.reward_bound, self.gamma, self.beta1, self.beta2, self.sigma_w)
        )


@dataclass(frozen=True)
class Pilot:
    """A short run that estimates σ_g, L̃ and σ_w, and knows H and d; a flag of your own wins over its estimate."""

    pilot: str = option("", "environment to estimate the constants in, by a short run of MFPO; none: as assumed")
    pilot_trajectories: int = option(200, "trajectories per round of the pilot", least=2, most=10**6)
    pilot_rounds: int = option(5, "rounds of the pilot", least=2, most=10**6)
    pilot_step: float = option(0.05, "how far the policy moves per round of the pilot, at most", above=0, most=1e6)
    pilot_seed: int = option(0, "of the pilot", least=0, most=2**32 - 1)

    def __post_init__(self) -> None:
        """Check ranges."""
        validate(self)


class Plan(NamedTuple):
    """One way to the target. Costs are per agent; environment steps are fewer where episodes end before the horizon."""

    lam: float | None  # None: K and D were given
    local_steps: int
    trajectories: int
    initial_trajectories: int
    rounds: int
    steps: int  # T
    trajectories_per_agent: int
    env_steps_per_agent: int
    bytes_up: int
    bytes_down: int
    stepsize: float  # α_1
    momentum: float  # ν_2
    bound: float  # of the average squared gradient norm


def make_plan(a: Assumptions, lam: float) -> Plan:
    """The fewest rounds, with K and D as λ asks for (or as they are given), whose bound meets the target."""
    rounds = _fewest(lambda rounds: _with_rounds(a, lam, rounds).bound <= a.target_eps)
    if rounds is None:
        raise ConfigError(
            f"--target-eps is {a.target_eps:g}, which takes more than {MOST_ROUNDS:.0e} rounds; give a larger one."
        )
    return _with_rounds(a, lam, rounds)


def make_plans(a: Assumptions) -> list[Plan]:
    """A plan for every λ; a single one if K and D are given."""
    if a.local_steps and a.trajectories:
        return [make_plan(a, a.lambdas[0])._replace(lam=None)]
    return [make_plan(a, lam) for lam in a.lambdas]


def _with_rounds(a: Assumptions, lam: float, rounds: int) -> Plan:
    # K = (T/N²)^(λ/3) and T = MK give K in terms of the rounds M
    k = a.local_steps or _whole(math.pow(max(rounds / a.agents**2, 1.0), lam / (3 - lam)))
    steps = rounds * k
    d = a.trajectories or _whole(theory.trajectories_order(steps, a.agents, lam))
    setting = Setting(a.agents, k, d, a.overall_smoothness, a.sigma)
    trajectories = d * k + d * (steps - 1)  # the D̃ initial trajectories are step 1
    return Plan(
        lam=lam,
        local_steps=k,
        trajectories=d,
        initial_trajectories=d * k,
        rounds=rounds,
        steps=steps,
        trajectories_per_agent=trajectories,
        env_steps_per_agent=trajectories * a.horizon,
        bytes_up=rounds * 2 * a.parameters * NUMBER_BYTES,
        bytes_down=rounds * (2 * a.parameters + 1) * NUMBER_BYTES,
        stepsize=float(theory.alpha(setting, 1)),
        momentum=float(theory.nu(setting, 2)),
        bound=BOUNDS[a.bound](setting, steps, a.gap, d * k),
    )


def _whole(x: float) -> int:
    """The nearest whole number; of two the larger."""
    return math.floor(x + 0.5)


def _fewest(enough: Callable[[int], bool]) -> int | None:
    """The smallest number that is enough, if those above it are; None if it is beyond MOST_ROUNDS."""
    high = 1
    while not enough(high):
        if high > MOST_ROUNDS:
            return None
        high *= 2
    low = high // 2  # not enough, or 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
