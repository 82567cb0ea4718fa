"""FedPG-BR: Federated Policy Gradient with Byzantine Resilience.

Fan, Ma, Dai, Jing, Tan, Low: "Fault-Tolerant Federated Reinforcement Learning with Theoretical Guarantee", NeurIPS 2021
(arXiv 2110.14074). J(theta) = -E[return] is minimised; g(theta; tau) estimates its gradient.

    server   draws B_t from B_min .. B_max; theta_0 = theta                                       download
    agents   mu_k = mean of g(theta_0; tau) over B_t trajectories                                 upload
    server   mu = mean of those mu_k that pass the filter (`aggregation.fedpg_br`)                merge
             N_t ~ Geometric(b / (B_t + b)); for n = 0 .. N_t - 1, on its own environment:        refine
               v = mean over b trajectories of g(theta_n; tau) - w g(theta_0; tau), plus mu
               theta_{n+1} = theta_n moved along v by Adam

    paper       here                             paper       here
    θ_0^t       Server.theta_0                   B_t         Server.batch
    θ_n^t       Server.theta                     b_t         Config.server_trajectories
    μ_t         Server.mu                        σ, δ, α     Config.sigma, Config.delta, Config.suspected
    N_t         Server.remaining + steps done    ω(τ|θ_n,θ_0)  estimators.importance_weights

What the paper leaves open, or its released code does otherwise, and what is done here:
- At n = 0 both gradients are the same number, so v = mu exactly: `merge` takes that step and samples nothing for it.
- g is the mean over the steps of a batch, not the sum over a trajectory divided by their number (so the released code,
  whose σ have this scale); Adam does not mind.
- N_t is at least 1, as in the released code, and at most `server_steps`.
- If no vector has enough others near it, the filter keeps the one in the densest place (`aggregation`); the released
  code then goes on without mu. That code also ends a round early when the mean ratio leaves 1 ± 0.005; this does not.
- Agents always sample B_max trajectories and use the first B_t. With `env_steps` a trajectory is a segment from the
  beginning of the round on, for the server from the beginning of its steps on; the value of its last state is added.
- What the agents share besides (value function, statistics of observations) the filter does not see: it is the median
  of those it kept. Both are of this round when the server refines, and mu was measured with those of the round before.
- Everything in Config beyond the paper's symbols is ours; `presets/*.toml` has the printed settings as "paper".
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mfpo.algorithms.fedpg_br_config import Config
from mfpo.learning import acting, aggregation, estimators, normalisation, schedules, steps, trees
from mfpo.learning import critic as value_function
from mfpo.learning.gradients import Cost, log_ratio, policy_gradient
from mfpo.learning.policies import Policy
from mfpo.learning.timeline import map_over_time
from mfpo.types import Algorithm, Array, EnvSpec, Key, Metrics, Plan, PyTree, Trajectories

NAMES = ("fedpg_br",)


class Server(NamedTuple):
    """The global policy, and what a round needs between merging and the last refinement."""

    theta: PyTree
    theta_0: PyTree  # where the agents measured mu
    mu: PyTree
    batch: Array  # B_t of the coming round
    remaining: Array  # refinements still to do
    step: PyTree  # Adam's moments
    obs: PyTree  # Statistics of all observations, or empty
    critic: PyTree  # Critic, or empty


class Download(NamedTuple):
    """What an agent is told."""

    theta: PyTree
    batch: Array
    obs: PyTree
    critic: PyTree


class Upload(NamedTuple):
    """What the server filters and averages."""

    g: PyTree
    obs: PyTree  # Statistics of this round's observations
    critic: PyTree  # Share


class Agent(NamedTuple):
    """Private to the node."""

    theta: PyTree
    batch: Array
    g: PyTree
    obs: PyTree  # Statistics, as downloaded
    obs_seen: PyTree  # Statistics, since then
    critic: PyTree  # Learner


class Parts(NamedTuple):
    """The configured building blocks, shared by all functions of the algorithm."""

    config: Config
    spec: EnvSpec
    policy: Policy
    rule: steps.StepRule
    alpha: schedules.Schedule
    agents: int


def make(config: Config, spec: EnvSpec, agents: int) -> Algorithm:
    """FedPG-BR for an environment and a number of agents (which decides how many may be Byzantine)."""
    c = config
    policy = acting.policy_for(spec, c.hidden, c.activation, c.initial_std, c.squash, c.least_std)
    rule, alpha = steps.adam(c.adam_beta1, c.adam_beta2), schedules.geometric(c.stepsize, c.stepsize_decay)
    parts = Parts(c, spec, policy, rule, alpha, agents)
    make_filter(parts, c.trajectories)  # finds out now whether it withstands so many

    return Algorithm(
        plan=Plan(
            1,
            c.trajectories,
            segment=c.segment,
            server_steps=c.server_steps,
            server_episodes=c.server_trajectories,
        ),
        init=lambda key: init(parts, key),
        join=lambda key: join(parts, key),
        download=lambda server: Download(server.theta, server.batch, server.obs, server.critic),
        receive=receive,
        actor=lambda side: acting.Actor(policy.unravel(side.theta), side.obs),
        act=partial(acting.act, policy),
        ready=acting.ready,
        greedy=partial(acting.greedy, policy),
        learn=lambda agent, batch, key: learn(parts, agent, batch, key),
        upload=lambda agent: Upload(
            agent.g, agent.obs_seen, value_function.share(agent.critic) if agent.critic else ()
        ),
        merge=lambda server, uploads, mask, key: merge(parts, server, uploads, mask, key),
        withstands=partial(aggregation.tolerated, "fedpg-br"),
        refine=lambda server, batch, key: refine(parts, server, batch),
        refinements=lambda server: server.remaining,
    )


def make_filter(parts: Parts, trajectories: Array | int) -> aggregation.Rule:
    """The rule that makes one gradient of all, each of which comes from this many trajectories."""
    c = parts.config
    byzantine = int(c.suspected * parts.agents + 1e-6)
    return aggregation.make("fedpg-br", parts.agents, byzantine, c.sigma, c.delta, trajectories)


def draw_batch(c: Config, key: Key) -> Array:
    """B_t."""
    return jax.random.randint(key, (), c.least_trajectories or c.trajectories, c.trajectories + 1)


def draw_steps(c: Config, batch: Array, key: Key) -> Array:
    """N_t: how many steps the server takes, the first of them along mu. On average (B_t + b) / b."""
    b = c.server_trajectories
    return jnp.minimum(jax.random.geometric(key, b / (batch + b)), c.server_steps).astype(jnp.int32)


def init(parts: Parts, key: Key) -> Server:
    """A fresh policy."""
    c, spec = parts.config, parts.spec
    key_theta, key_phi, key_batch = jax.random.split(key, 3)
    theta = parts.policy.init(key_theta)
    obs = normalisation.start(spec, c.normalise_observations)
    critic = value_function.init(key_phi, acting.feature_count(spec), c.value_hidden) if c.baseline == "value" else ()
    nothing, step = trees.zeros_like(theta), parts.rule.init(theta)
    return Server(theta, theta, nothing, draw_batch(c, key_batch), jnp.int32(0), step, obs, critic)


def join(parts: Parts, key: Key) -> Agent:
    """An agent that has heard nothing yet; its first download fills it."""
    s = trees.zeros_like(init(parts, key))
    return Agent(s.theta, s.batch, s.mu, s.obs, s.obs, value_function.join(s.critic) if s.critic else ())


def receive(agent: Agent, download: Download) -> Agent:
    """Measure the gradient where the server is."""
    return Agent(
        theta=download.theta,
        batch=download.batch,
        g=trees.zeros_like(agent.g),
        obs=download.obs,
        obs_seen=trees.zeros_like(download.obs),
        critic=value_function.receive(agent.critic, download.critic) if download.critic else (),
    )


def learn(parts: Parts, agent: Agent, batch: Trajectories, key: Key) -> tuple[Agent, Metrics]:
    """The gradient from the first B_t trajectories."""
    c = parts.config
    batch = first_columns(batch, agent.batch)
    obs = acting.seen(parts.spec, agent.obs, batch)
    critic, metrics = agent.critic, {}
    if critic:
        seen, last_seen = acting.features(parts.policy, agent.theta, agent.obs, obs, batch)
        options = value_function.options_of(c)
        critic, (a, target, loss) = value_function.advantages(critic, seen, last_seen, batch, key, options)
        cost, metrics = error(parts, critic.critic, target), {"value_loss": loss}
    else:
        a, cost = monte_carlo(batch, agent.batch, c.gamma, c.baseline), None
    g, _ = gradient(parts, agent.theta, obs, batch, scaled(c, a, batch), cost)
    agent = agent._replace(g=g, obs_seen=normalisation.observe(agent.obs_seen, batch), critic=critic)
    return agent, {"gradient_norm": trees.norm(g)} | metrics


def first_columns(batch: Trajectories, n: Array) -> Trajectories:
    """The batch as if only its first n columns had been sampled."""
    used = jnp.arange(batch.live.shape[1]) < n
    return batch._replace(
        reward=jnp.where(used, batch.reward, 0.0),
        live=batch.live & used,
        terminated=batch.terminated & used,
        truncated=batch.truncated & used,
    )


def monte_carlo(batch: Trajectories, n: Array, gamma: float, baseline: str) -> Array:
    """Rewards to go [H, D] of the first n columns, minus a baseline.

    none     0
    episode  the mean of the episode, in units of its standard deviation: the released code's
    time     the mean of the other trajectories at the same step
    """
    a = jnp.where(batch.live, estimators.reward_to_go(batch.reward, gamma), 0.0)
    if baseline == "episode":
        a = jax.vmap(estimators.standardise, 1, 1)(a, batch.live)
    elif baseline == "time":
        a = a - (jnp.sum(a, axis=1, keepdims=True) - a) / jnp.maximum(n - 1, 1)
    return jnp.where(batch.live, a, 0.0)


def scaled(c: Config, advantage: Array, batch: Trajectories) -> Array:
    """In standard units, if that is wanted."""
    return estimators.standardise(advantage, batch.live) if c.normalise_advantages else advantage


def error(parts: Parts, critic: value_function.Critic, target: Array) -> Cost | None:
    """The error of the value, where it shapes the trunk that value and policy share."""
    c = parts.config
    if parts.policy.features is None or not c.value_weight:
        return None
    return value_function.error(critic, target, c.value_weight, c.activation)


def gradient(
    parts: Parts,
    theta: PyTree,
    obs: Array,
    batch: Trajectories,
    advantage: Array,
    cost: Cost | None,
    w: Array | None = None,
) -> tuple[PyTree, Array]:
    """The mean over all steps of grad w (cost - advantage * log pi_theta(a|s) - entropy), and log pi_theta(a|s) [H, D].

    The weights w are constants, and 1 if they are None.
    """
    coefficient = advantage if w is None else w * advantage
    g, log_prob = policy_gradient(parts.policy, theta, obs, batch, coefficient, parts.config.entropy, w, cost)
    return trees.scale(batch.live.shape[1] / jnp.maximum(jnp.sum(batch.live), 1), g), log_prob


def merge(parts: Parts, server: Server, uploads: Upload, mask: Array, key: Key) -> tuple[Server, Metrics]:
    """Filter the gradients, take the first step along what remains, and draw N_t and the next B_t."""
    key_steps, key_batch = jax.random.split(key)
    mu, kept = make_filter(parts, server.batch)(uploads.g, aggregation.finite(uploads, mask))
    besides, _ = aggregation.median((uploads.obs, uploads.critic), kept)
    obs, critic = trees.repeat(besides, mask.shape[0])
    steps_ = draw_steps(parts.config, server.batch, key_steps)
    heard = Server(
        theta=server.theta,
        theta_0=server.theta,
        mu=mu,
        batch=draw_batch(parts.config, key_batch),
        remaining=steps_ - 1,
        step=server.step,
        obs=normalisation.merge_all(server.obs, obs, kept),
        critic=value_function.merge(server.critic, critic, kept) if server.critic else (),
    )
    heard = trees.where(jnp.any(kept), move(parts, heard, mu), server)
    steps_ = jnp.where(jnp.any(kept), steps_, 0)
    return heard, {"kept": kept, "batch": server.batch, "server_steps": steps_, "mu_norm": trees.norm(mu)}


def move(parts: Parts, server: Server, v: PyTree) -> Server:
    """One step of Adam along v."""
    step = parts.rule.absorb(server.step, v, steps.UNKNOWN)
    return server._replace(
        theta=trees.add(server.theta, parts.rule.displacement(step, v, parts.alpha(step.updates))), step=step
    )


def refine(parts: Parts, server: Server, batch: Trajectories) -> tuple[Server, Metrics]:
    """One more step: along mu, corrected by how the gradient changed since theta_0 on the server's own trajectories."""
    c = parts.config
    obs = acting.seen(parts.spec, server.obs, batch)
    if server.critic:
        seen, last_seen = acting.features(parts.policy, server.theta, server.obs, obs, batch)
        v = map_over_time(lambda x: value_function.value(server.critic, x, c.activation), (seen,), batch.length)
        last = value_function.value(server.critic, last_seen, c.activation)
        a = estimators.generalised_advantage(batch, v, last, c.gamma, c.gae_lambda, c.env_steps > 0)
        cost = error(parts, server.critic, value_function.standard(server.critic, a + v))
    else:
        a, cost = monte_carlo(batch, jnp.int32(c.server_trajectories), c.gamma, c.baseline), None
    direction, w = corrected(parts, server, obs, batch, scaled(c, a, batch), cost)
    server = move(parts, server._replace(remaining=server.remaining - 1), direction)
    return server, {"direction_norm": trees.norm(direction)} | estimators.weight_spread(w, batch.live)


def corrected(
    parts: Parts, server: Server, obs: Array, batch: Trajectories, a: Array, cost: Cost | None
) -> tuple[PyTree, Array]:
    """g(theta_n) - w g(theta_0) + mu, and w [H, D]."""
    g, log_prob = gradient(parts, server.theta, obs, batch, a, cost)
    ratio = log_ratio(parts.policy, server.theta_0, log_prob, obs, batch)
    w = estimators.importance_weights(ratio, parts.config.weights, parts.config.weight_cap)
    w = jnp.where(batch.live, w, 0.0)  # where nothing happened, a weight may still be infinite
    g_0, _ = gradient(parts, server.theta_0, obs, batch, a, cost, w)
    return trees.add(trees.sub(g, g_0), server.mu), w
