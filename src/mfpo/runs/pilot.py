"""The constants of the analysis, estimated by a short run of MFPO in the user's own environment.

Every trajectory is an agent of its own that takes one step a round (D = K = 1) with ν = 1 and exact weights. Then

    round 1     u_i = g(θ; τ_i)                              its variance over i is σ_g²
    later       u_i - ū = g(θ; τ_i) - w_i g(θ_old; τ_i)      its mean square over ||θ - θ_old||² is what L̃² bounds

with ū, θ_old and θ shared by all: the estimates need nothing but what agents and server hold anyway. They are those of
one path from one first policy. The analysis wants bounds over all policies, which no run can give.
"""

from typing import NamedTuple

import numpy as np

from mfpo import algorithms, envs, federation
from mfpo.errors import Diverged, RunError
from mfpo.learning.planner import Pilot
from mfpo.runs.settings import resolve


class Estimates(NamedTuple):
    """The largest of each along the path."""

    sigma: float  # σ_g
    smoothness: float  # L̃
    sigma_w: float  # of weights between policies that are one step apart
    step: float  # the longest
    horizon: int
    parameters: int
    pilot_trajectories: int  # what the pilot cost in all


# MFPO as the analysis has it, but for the length of a step: long enough to see a difference, short enough for weights.
SETTINGS = {
    "local_steps": 1,
    "trajectories": 1,
    "initial_trajectories": 0,
    "env_steps": 0,
    "momentum": 1.0,
    "momentum_rule": "constant",
    "correction": "importance",
    "weights": "trajectory",
    "weight_cap": float("inf"),
    "server_adjustment": True,
    "step": "normalised",
    "step_memory": 0.0,
    "stepsize_rule": "geometric",
    "stepsize_decay": 1.0,
    "estimator": "gpomdp",
    "discount_states": True,
    "baseline": "none",
    "entropy": 0.0,
    "normalise_advantages": False,
    "normalise_observations": False,
}


def estimate(pilot: Pilot, gamma: float) -> Estimates:
    """Run the pilot for the objective with discount factor `gamma`."""
    settings, config = resolve(
        {"env": pilot.pilot, "agents": pilot.pilot_trajectories, "seed": pilot.pilot_seed},
        SETTINGS | {"gamma": gamma, "stepsize": pilot.pilot_step},
    )
    world = envs.make(settings.env, settings.horizon, settings.world, settings.agents)
    algorithm = algorithms.make(settings.algorithm, config, world.spec, settings.agents)
    engine = federation.make_engine("inprocess", algorithm, world, settings.agents, settings.seed)
    state = engine.start()
    theta_old = u_old = np.zeros(0)
    sigma_squared, steps, slopes, weights = 0.0, [0.0], [0.0], [0.0]
    for number in range(1, pilot.pilot_rounds + 1):
        state, log = engine.round(state, number)
        own = np.asarray(state.agents.u, float)
        theta = np.asarray(state.agents.theta[0], float)  # what all agents sampled with; the server has moved on
        if number == 1:
            sigma_squared = float(np.sum((own - own.mean(axis=0)) ** 2) / (len(own) - 1))
        else:
            moved = float(np.sum((theta - theta_old) ** 2))
            if moved == 0:
                raise RunError(f"The pilot on {pilot.pilot} found no gradient; give more --pilot-trajectories.")
            steps.append(moved)
            slopes.append(float(np.mean(np.sum((own - u_old) ** 2, axis=1))) / moved)
            weights.append(float(np.var(log.learn["weight_mean"])))
        theta_old, u_old = theta, np.asarray(state.server.u, float)
    found = (sigma_squared, max(slopes), max(weights), max(steps))
    if not np.all(np.isfinite(found)):
        raise Diverged(f"The pilot on {pilot.pilot} met weights that are not finite; give a shorter --pilot-step.")
    sigma, smoothness, sigma_w, step = (float(np.sqrt(x)) for x in found)
    cost = settings.agents * pilot.pilot_rounds
    return Estimates(sigma, smoothness, sigma_w, step, world.spec.horizon, theta_old.size, cost)
