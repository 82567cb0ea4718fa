"""The analysis of MFPO as functions: its constants, schedules, lemmas and bounds, in plain floats.

Statements are cited by the names they have in the paper's source: lemma "successive difference", "error accumulation"
(drift), "error contraction" (gradient error), "gradient consensus error", theorem "gradient bound" (the inequality with
all its numbers) and theorem "convergence" (its orders). `docs/analysis.md` walks through them beside the code.

    paper   here                           paper        here
    L       smoothness                     c_α, c_ν     Setting.c_alpha, Setting.c_nu
    L_g     estimator_smoothness           c_t          c_t
    G_g     estimator_bound                α_t, ν_t     alpha, nu
    c_w     weight_growth                  D̃            initial_trajectories
    L̃_g     corrected_smoothness           J(θ̄^1) - J*  gap
    L̃       overall_smoothness             δ_t, ε̄_t     consensus error, gradient error

Where the printed proof and its statement differ, and what is done here:
- the bound on the accumulated consensus error asks for c_ν ≤ 128 √2 L²/(DN). With c_ν made of L̃ that fails whenever
  L̃² > 2.8 L², which is the usual case; the proof needs L̃ there, and with L̃ it holds (a test checks it).
- γ = 1 is allowed by the paper, but its constants divide by 1 - γ; here γ must be below 1.
- σ_g cancels: c_t and c_α³ are both multiples of σ_g², so neither schedule depends on it. L̃ cancels in ν_t.
"""

import math
from typing import Any, NamedTuple

import numpy as np


class Problem(NamedTuple):
    """What the two assumptions of the analysis bound, and the problem's own constants."""

    horizon: int  # H
    reward_bound: float  # R_max: rewards are in [0, R_max]
    gamma: float  # below 1
    beta1: float  # bound of ||grad log pi||
    beta2: float  # bound of ||hessian log pi||
    sigma_w: float  # standard deviation of a trajectory's importance weight
    baseline: float = 0.0  # b


def smoothness(p: Problem) -> float:
    """L = H R_max (H β₁² + β₂) / (1 - γ): the gradient of J is L-Lipschitz (lemma "successive difference").

    >>> round(smoothness(Problem(2, 1.0, 0.5, beta1=2.0, beta2=1.0, sigma_w=0.0)), 9)
    36.0
    """
    return p.horizon * p.reward_bound * (p.horizon * p.beta1**2 + p.beta2) / (1 - p.gamma)


def estimator_smoothness(p: Problem) -> float:
    """L_g = H β₂ (R_max + b) / (1 - γ): g(.; τ) is L_g-Lipschitz (lemma "error contraction")."""
    return p.horizon * p.beta2 * (p.reward_bound + p.baseline) / (1 - p.gamma)


def estimator_bound(p: Problem) -> float:
    """G_g = H β₁ (R_max + b) / (1 - γ): the norm of g is at most G_g (lemma "error contraction")."""
    return p.horizon * p.beta1 * (p.reward_bound + p.baseline) / (1 - p.gamma)


def weight_growth(p: Problem) -> float:
    """c_w = H (2 H β₁² + β₂)(σ_w² + 1): Var(w) is at most c_w ||θ - θ'||² (lemma "error contraction")."""
    return p.horizon * (2 * p.horizon * p.beta1**2 + p.beta2) * (p.sigma_w**2 + 1)


def corrected_smoothness(p: Problem) -> float:
    """L̃_g = sqrt(2 (L_g² + G_g² c_w)): how fast g(θ) - w g(θ') grows with θ - θ' (lemma "error contraction")."""
    return math.sqrt(2 * (estimator_smoothness(p) ** 2 + estimator_bound(p) ** 2 * weight_growth(p)))


def overall_smoothness(p: Problem) -> float:
    """L̃ = max(L̃_g, L), the only smoothness the theorem needs."""
    return max(corrected_smoothness(p), smoothness(p))


class Setting(NamedTuple):
    """A federation as the theorem sees it. `sigma` is σ_g, the standard deviation of one trajectory's gradient."""

    agents: int  # N
    local_steps: int  # K
    trajectories: int  # D
    smoothness: float  # L̃
    sigma: float  # σ_g

    @property
    def dn(self) -> float:
        """DN: trajectories in one step of all agents."""
        return float(self.trajectories) * self.agents

    @property
    def c_alpha(self) -> float:
        """c_α = (D N σ_g)^(2/3) / L̃."""
        return math.cbrt(self.dn * self.sigma) ** 2 / self.smoothness

    @property
    def c_nu(self) -> float:
        """c_ν = L̃² / (24 K (DN)²) + 64 L̃² / (DN)."""
        return self.smoothness**2 * (1 / (24 * self.local_steps * self.dn**2) + 64 / self.dn)

    @property
    def start(self) -> float:
        """2¹² K³ (DN)²: for about as many steps the stepsize is constant, 1 / (16 L̃ K)."""
        return 2.0**12 * float(self.local_steps) ** 3 * self.dn**2

    @property
    def floor(self) -> float:
        """The parts of c_t / σ_g² that do not depend on t: max(c_ν³ c_α³ / (2¹² K³ L̃³ σ_g²), 2)."""
        per_smoothness = self.c_nu / self.smoothness**2  # c_ν³ c_α³ / L̃³ is a multiple of (c_ν / L̃²)³
        return max(per_smoothness**3 * self.dn**2 / (2.0**12 * float(self.local_steps) ** 3), 2.0)


def c_t(s: Setting, t: float) -> float:
    """c_t = max(c_ν³ c_α³ / (2¹² K³ L̃³), 2¹² K³ D² N² σ_g² - σ_g² t, 2 σ_g²) (theorem "gradient bound")."""
    return max(s.floor, s.start - t) * s.sigma**2


def alpha(s: Setting, t: Any, xp: Any = np) -> Any:
    """α_t = c_α / (c_t + σ_g² t)^(1/3) for t = 0, 1, ... (theorem "gradient bound").

    Numerator and denominator are divided by σ_g^(2/3). `t` may be an array of the namespace `xp` (NumPy or JAX).
    """
    scale = s.c_alpha / math.cbrt(s.sigma) ** 2
    return scale / xp.cbrt(xp.maximum(s.floor + t, s.start))


def nu(s: Setting, t: Any, xp: Any = np) -> Any:
    """ν_t = 1 - c_ν α_{t-1}² for t = 1, 2, ... (theorem "gradient bound")."""
    return 1.0 - s.c_nu * alpha(s, t - 1, xp) ** 2


def drift_bound(s: Setting, stepsizes: Any, deviations: Any) -> float:
    """Of ||θ_i - θ̄||², from α_τ and ||u_i - ū||² of the steps since the last synchronisation ("error accumulation").

    It holds for every agent and run, not on average only.
    """
    return float((s.local_steps - 1) * np.sum(np.asarray(stepsizes) ** 2 * np.asarray(deviations)))


def gradient_error_bound(s: Setting, t: int, error: float, direction: float, consensus: float) -> float:
    """Of E||ε̄_t||², from E||ε̄||², E||ū||² and δ, all of step t-1 (lemma "error contraction", with L̃ for L̃_g).

    After a synchronisation the agents go on from θ̄, so ε̄ of step t-1 is ū - ∇J(θ̄) then, not ū - mean ∇J(θ_i): the
    proof takes the two for the same.
    """
    keep, move = float(nu(s, t)) ** 2, (s.smoothness * float(alpha(s, t - 1))) ** 2
    fresh = 2 * s.sigma**2 * (1 - float(nu(s, t))) ** 2 / s.dn
    of_drift = 8 * (s.local_steps - 1) * keep * move * consensus / (s.local_steps * s.dn * s.agents)
    return keep * error + 4 * keep * move * direction / s.dn + fresh + of_drift


def consensus_error_bound(s: Setting, t: int, consensus: float, direction: float, earlier: float) -> float:
    """Of δ_t = Σ E||u_i - ū||² (lemma "gradient consensus error", with L̃ for L and L̃_g).

    `consensus` and `direction` are δ and E||ū||² of step t-1, `earlier` is the sum of α_τ² δ_τ over the steps τ < t of
    this round. The lemma has δ_t on its right-hand side, too; here it is solved for δ_t.
    """
    k, n = s.local_steps, s.agents
    keep, move = float(nu(s, t)) ** 2, (s.smoothness * float(alpha(s, t - 1))) ** 2
    renewal = (1 - float(nu(s, t))) ** 2
    spread = 32 * renewal * s.smoothness**2 * k**2
    right = keep * (1 + 1 / k + 8 * move * k) * consensus + spread * earlier
    right += 8 * move * keep * n * k * direction + 8 * renewal * s.sigma**2 * n * k / s.trajectories
    return right / (1 - spread * float(alpha(s, t)) ** 2)


def gradient_bound(s: Setting, steps: float, gap: float, initial_trajectories: float) -> float:
    """The right-hand side of theorem "gradient bound", as printed: of the average of E||∇J(θ̄_t)||² over T steps."""
    slow = math.cbrt(s.dn * steps) ** 2
    k, ratio = s.local_steps, s.trajectories / initial_trajectories
    descent = (32 * s.smoothness * k / steps + 2 * s.smoothness / slow) * gap
    noise = (2**15 * k / steps + 2**11 / slow) * (1 + math.log1p(steps))
    first = 8 * ratio * k**2 / steps + ratio * k / (2 * slow)
    return descent + (noise + first) * s.sigma**2


def schedule_bound(s: Setting, steps: float, gap: float, initial_trajectories: float) -> float:
    """The same before the proof's last estimates, which are made for large T: the line that still has α_T and Σ α_t³.

    2 gap / (α_T T) + D σ_g² / (32 L̃² D̃ α_0 α_T T) + c_ν² σ_g² Σ_{t=0}^T α_t³ / (8 L̃² α_T T). Never above
    `gradient_bound`, and for the first `Setting.start` steps orders of magnitude below it.
    """
    first, last = float(alpha(s, 0)), float(alpha(s, steps))
    descent = 2 * gap
    start = s.trajectories * s.sigma**2 / (32 * s.smoothness**2 * initial_trajectories * first)
    noise = s.c_nu**2 * s.sigma**2 * sum_of_cubes(s, steps) / (8 * s.smoothness**2)
    return (descent + start + noise) / (last * steps)


def sum_of_cubes(s: Setting, steps: float) -> float:
    """Σ_{t=0}^T α_t³, or slightly more: the part with a decreasing stepsize is bounded by its integral."""
    constant_until = max(math.floor(s.start - s.floor), 0)  # the last t at which α_t is what it was at 0
    level = float(alpha(s, 0)) ** 3
    if steps <= constant_until:
        return level * (steps + 1)
    first = constant_until + 1
    tail = 1 / (s.floor + first) + math.log((s.floor + steps) / (s.floor + first))
    return level * first + s.dn**2 / s.smoothness**3 * tail


def communication_complexity(eps: float) -> float:
    """Rounds to an ε-first-order stationary point, up to constants and logarithms: 1/ε (theorem "convergence")."""
    return 1 / eps


def interaction_complexity(eps: float, agents: int, horizon: int) -> float:
    """Actions per agent to the same, up to constants and logarithms: H / (N ε^(3/2)) (theorem "convergence")."""
    return horizon / (agents * eps * math.sqrt(eps))


def local_steps_order(steps: float, agents: int, lam: float) -> float:
    """K = (T/N²)^(λ/3) (theorem "convergence"), at least 1."""
    return max(math.pow(steps / agents**2, lam / 3), 1.0)


def trajectories_order(steps: float, agents: int, lam: float) -> float:
    """D = (T/N²)^(1/2 - λ/2) (theorem "convergence"), at least 1."""
    return max(math.pow(steps / agents**2, (1 - lam) / 2), 1.0)
