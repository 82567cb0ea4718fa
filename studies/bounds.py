"""The lemmas and the theorem where ∇J is known exactly: results/bounds.json and docs/images/bounds.png.

    python studies/bounds.py       # from the root of a clone; two minutes of a core

MFPO runs in `exact_world` with the settings of the theorem (its schedules, D̃ = DK, plain steps, REINFORCE without a
baseline, exact weights) through the same agent and server loops as every run; many runs with different seeds stand for
the expectations of the analysis.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from exact_world import GAMMA, PROBLEM, SIGMA_W, SPEC, best_objective, estimator_sigma, moments, objective, world

from mfpo.algorithms import mfpo
from mfpo.federation import round as loops
from mfpo.federation.sampling import make_sampler
from mfpo.learning import theory
from mfpo.learning.theory import Setting
from mfpo.types import Algorithm, Array, Key, PyTree

ROOT = Path(__file__).parent.parent
RESULTS, IMAGE = ROOT / "results" / "bounds.json", ROOT / "docs" / "images" / "bounds.png"

AGENTS, LOCAL_STEPS, TRAJECTORIES = 4, 4, 4
MANY, LONG = (64, 1_000), (8, 8_000)  # (runs, rounds): many for the lemmas, long ones for the theorem
ROUNDING = 2e-6  # of a distance in parameter space: eight coordinates of size 2, a few operations
POINTS = 160  # of each curve in the results


def make_setting(agents: int = AGENTS, local_steps: int = LOCAL_STEPS, trajectories: int = TRAJECTORIES) -> Setting:
    """The federation, with the lemmas' own smoothness."""
    return Setting(agents, local_steps, trajectories, theory.overall_smoothness(PROBLEM), estimator_sigma())


def make_algorithm(s: Setting) -> Algorithm:
    """MFPO as the theorem has it."""
    config = mfpo.Config(
        local_steps=s.local_steps,
        trajectories=s.trajectories,
        initial_trajectories=s.trajectories * s.local_steps,
        gamma=GAMMA,
        stepsize_rule="theorem",
        momentum_rule="theorem",
        theorem_smoothness=s.smoothness,
        theorem_sigma=s.sigma,
        weights="trajectory",
        weight_cap=float("inf"),
        step="plain",
        estimator="reinforce",
        baseline="none",
        normalise_advantages=False,
        normalise_observations=False,
        hidden=(),
    )
    return mfpo.make(config, SPEC, s.agents)


class Row(NamedTuple):
    """What is measured at a step t of one run. Squared norms; per agent where [N]."""

    t: Array  # 0 while the initial direction is being gathered
    error: Array  # ||ū - mean ∇J(θ_i)||²
    error_at_mean: Array  # ||ū - ∇J(θ̄)||²: what the error is after a synchronisation
    deviation: Array  # [N] ||u_i - ū||²
    drift: Array  # [N] ||θ_i - θ̄||²
    direction: Array  # ||ū||²
    gradient: Array  # ||∇J(θ̄)||²
    objective: Array  # J(θ̄)
    theta: Array  # θ of agent 0
    theta_tm1: Array


def measure(before: Any, after: Any) -> Row:
    """From the agents before and after a local step: θ_i^t is of before, u_i^t of after."""
    theta, u = before.theta, after.u
    mean_theta, mean_u = jnp.mean(theta, axis=0), jnp.mean(u, axis=0)
    gradients = jax.vmap(jax.grad(objective))(theta)
    at_mean = jax.grad(objective)(mean_theta)
    return Row(
        t=after.t[0],
        error=_squared(mean_u - jnp.mean(gradients, axis=0)),
        error_at_mean=_squared(mean_u - at_mean),
        deviation=jnp.sum((u - mean_u) ** 2, axis=1),
        drift=jnp.sum((theta - mean_theta) ** 2, axis=1),
        direction=_squared(mean_u),
        gradient=_squared(at_mean),
        objective=objective(mean_theta),
        theta=theta[0],
        theta_tm1=before.theta_tm1[0],
    )


def _squared(x: Array) -> Array:
    return jnp.sum(x**2)


def make_run(s: Setting, rounds: int) -> Callable[[Array], tuple[Row, loops.State]]:
    """seed -> a row per step t, and the state at the end; made of the loops that engines are made of."""
    algorithm = make_algorithm(s)
    work, service = loops.make_work(algorithm), loops.make_service(algorithm)
    sample, loop = make_sampler(world(), algorithm, s.agents), loops.compiled_loop(loops.count_steps(algorithm, 1))
    ids, everyone = jnp.arange(s.agents), jnp.ones(s.agents, bool)

    def recording(body: loops.Body, agents: PyTree, steps: Array) -> tuple[PyTree, Any]:
        def advance(agents: PyTree, step: Array) -> tuple[PyTree, Any]:
            after, _ = body(agents, step)
            return after, measure(agents, after)

        return loop(advance, agents, steps)

    def one_round(seed: Key, state: loops.State, number: Array) -> tuple[loops.State, Row]:
        steps = jnp.where(number == 1, loops.count_steps(algorithm, 1), s.local_steps)
        download = algorithm.download(state.server)
        agents, uploads, rows = loops.local(work, sample, recording, state.agents, ids, download, seed, number, steps)
        server, _ = loops.serve(service, None, recording, state.server, uploads, everyone, seed, number)
        last = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, steps - s.local_steps, s.local_steps), rows)
        return loops.State(server, agents), last  # in round 1 the others gather the initial direction

    def run(seed: Array) -> tuple[Row, loops.State]:
        key = jax.random.key(seed)
        start = loops.start(algorithm, s.agents, key)
        state, rows = jax.lax.scan(lambda *x: one_round(key, *x), start, jnp.arange(1, rounds + 1))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows), state

    return run


def analyse(s: Setting, rows: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Curves over t, the measured beside their bounds, and the largest ratio of each pair; `rows` is [runs, T]."""
    rows = jax.tree.map(np.asarray, rows)
    runs, steps, k = *rows.t.shape, s.local_steps
    ts = np.arange(1, steps + 1)
    assert (rows.t == ts).all()
    error, direction = rows.error.mean(0), rows.direction.mean(0)
    consensus = rows.deviation.sum(2).mean(0)
    gap = float(rows.objective[:, 0].mean()) - best_objective()
    initial = s.trajectories * k
    error_bound, consensus_bound = unrolled(s, direction, consensus)
    whole = ts % k == 0  # the theorem is about whole rounds
    curves = {
        "t": ts,
        "error": error,
        "error_bound": error_bound,
        "consensus": consensus,
        "consensus_bound": consensus_bound,
        "gradient": rows.gradient.mean(0),
        "average": np.cumsum(rows.gradient.mean(0)) / ts,
        "schedule_bound": np.array([theory.schedule_bound(s, t, gap, initial) for t in ts.tolist()]),
        "printed_bound": np.array([theory.gradient_bound(s, t, gap, initial) for t in ts.tolist()]),
    }
    drift, drift_bound = drifts(s, rows)
    facts = {
        "agents": s.agents,
        "local_steps": k,
        "trajectories": s.trajectories,
        "rounds": steps // k,
        "runs": runs,
        "smoothness": s.smoothness,
        "sigma": s.sigma,
        "gap": gap,
        "stepsize": float(theory.alpha(s, 1)),
        "momentum": float(theory.nu(s, 2)),
        "largest": {
            "gradient error": float((error / error_bound).max()),
            "consensus error": float((consensus / consensus_bound).max()),
            "drift": float((drift / drift_bound).max()),
            "average squared gradient": float((curves["average"] / curves["schedule_bound"])[whole].max()),
        },
        "last": {name: float(curve[-1]) for name, curve in curves.items()},
        "synchronisation": float((abs(rows.error_at_mean - rows.error) / rows.error)[:, whole].max()),
        "assumed": {
            "sigma": s.sigma,
            "sigma_w": SIGMA_W,
            "smoothness": theory.smoothness(PROBLEM),
            "weight_growth": theory.weight_growth(PROBLEM),
        },
        "assumptions": assumptions(rows),
    }
    return curves, facts


def unrolled(s: Setting, direction: np.ndarray, consensus: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two lemmas applied step after step, from what is known at t = 1; E||ū||² is the measured one.

    At t = 1 the directions are means of D̃ independent gradients: σ_g²/(D̃N) and, for all agents, Nσ_g²/D̃. (The lemma on
    the consensus error is printed for t = 1, too, where it cannot hold: its recursion begins with t = 2.)
    """
    k, steps = s.local_steps, len(direction)
    initial = s.trajectories * k
    error, spread = np.empty(steps), np.empty(steps)
    error[0], spread[0] = s.sigma**2 / (initial * s.agents), s.agents * s.sigma**2 / initial
    earlier = float(theory.alpha(s, 1)) ** 2 * spread[0]
    for t in range(2, steps + 1):
        synchronised = (t - 1) % k == 0  # all agents went on with ū
        before = 0.0 if synchronised else spread[t - 2]
        earlier = 0.0 if synchronised else earlier
        known = 0.0 if synchronised else consensus[t - 2]
        error[t - 1] = theory.gradient_error_bound(s, t, error[t - 2], direction[t - 2], known)
        spread[t - 1] = theory.consensus_error_bound(s, t, before, direction[t - 2], earlier)
        earlier += float(theory.alpha(s, t)) ** 2 * spread[t - 1]
    return error, spread


def drifts(s: Setting, rows: Any) -> tuple[np.ndarray, np.ndarray]:
    """||θ_i - θ̄||² and its bound for every run, agent and step but the first of a round, where both are zero.

    Less what rounding can make of it: late in a run agents differ by no more than the last digits of 32-bit numbers.
    """
    k = s.local_steps
    alpha = theory.alpha(s, rows.t.reshape(len(rows.t), -1, k, 1))
    each = (alpha**2 * rows.deviation.reshape(*alpha.shape[:3], -1)).cumsum(axis=2)
    drift = np.maximum(np.sqrt(rows.drift) - ROUNDING, 0) ** 2
    return drift.reshape(each.shape)[:, :, 1:], (k - 1) * each[:, :, :-1]


def assumptions(rows: Any) -> dict[str, float]:
    """The largest of what the assumptions bound, on every tenth step of agent 0; exact."""
    theta, old = (jnp.asarray(x[:, ::10].reshape(-1, x.shape[-1])) for x in (rows.theta, rows.theta_tm1))
    exact = jax.jit(jax.vmap(moments))(theta, old)
    moved = jnp.linalg.norm(theta - old, axis=1)
    turned = jnp.linalg.norm(exact.gradient - jax.jit(jax.vmap(moments))(old, old).gradient, axis=1)
    real = moved > 1e-5  # below, differences of 32-bit numbers say nothing
    return {
        "sigma": float(jnp.sqrt(exact.variance.max())),
        "sigma_w": float(jnp.sqrt(exact.weight_variance.max())),
        "smoothness": float((turned / moved)[real].max()),
        "weight_growth": float((exact.weight_variance / moved**2)[real].max()),
    }


def draw(results: dict[str, Any]) -> None:
    """Three panels, measured and bound in each."""
    import matplotlib
    from matplotlib.figure import Figure

    from mfpo.reporting.curves import COLOURS, DASHES, FAINT, STYLE

    lemma, theorem = "lemma, step after step", "theorem, "
    panels: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("many", "gradient error ‖ū − ∇J‖²", {"error": "measured", "error_bound": lemma}),
        ("many", "consensus error Σ‖uᵢ − ū‖²", {"consensus": "measured", "consensus_bound": lemma}),
        (
            "long",
            "average of ‖∇J(θ̄)‖² up to t",
            {"average": "measured", "schedule_bound": theorem + "with Σα³", "printed_bound": theorem + "as printed"},
        ),
    )
    with matplotlib.rc_context(STYLE):
        picture = Figure(figsize=(11.0, 3.8), dpi=160, layout="constrained")
        for axes, (which, title, lines) in zip(picture.subplots(1, 3), panels, strict=True):
            curves = results[which]["curves"]
            for number, (name, label) in enumerate(lines.items()):
                axes.plot(curves["t"], curves[name], color=COLOURS[number], linestyle=DASHES[number], label=label, lw=2)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel("step t")
            axes.set_title(f"{title}, {results[which]['runs']} runs", loc="left", fontsize=10, color=FAINT)
            axes.legend(fontsize=8.5, loc="best")
        title = f"Measured and guaranteed where ∇J is exact (N = {AGENTS}, K = {LOCAL_STEPS}, D = {TRAJECTORIES})"
        picture.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        picture.savefig(IMAGE)


def study(runs: int, rounds: int, first_seed: int) -> dict[str, Any]:
    """Run and compare. Of the curves, points at ends of rounds are kept, and all of the first round."""
    s = make_setting()
    rows, _ = jax.jit(jax.vmap(make_run(s, rounds)))(first_seed + jnp.arange(runs))
    curves, facts = analyse(s, rows)
    ends = np.unique(np.geomspace(1, rounds, POINTS).round().astype(int)) * s.local_steps
    shown = np.unique(np.concatenate([np.arange(1, s.local_steps), ends])) - 1
    return facts | {"curves": {name: [float(f"{x:.5g}") for x in curve[shown]] for name, curve in curves.items()}}


def main() -> None:
    """Run, compare, write."""
    results = {"many": study(*MANY, first_seed=0), "long": study(*LONG, first_seed=1000)}
    RESULTS.write_text(json.dumps(results) + "\n")
    draw(results)
    print(
        json.dumps(
            {name: {k: v for k, v in facts.items() if k != "curves"} for name, facts in results.items()}, indent=1
        )
    )


if __name__ == "__main__":
    main()
