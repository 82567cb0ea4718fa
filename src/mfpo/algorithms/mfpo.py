"""MFPO: Momentum-assisted Federated Policy Optimization.

Yue, Hua, Chen, Ren: "Momentum-Based Federated Reinforcement Learning with Interaction and Communication Efficiency",
INFOCOM 2024 (arXiv 2405.17471). J(theta) = -E[return] is minimised; g(theta; tau) estimates its gradient, unbiased.

    t = 1        u_i = mean of g(theta; tau) over D~ trajectories                                 initial direction
    t > 1        u_i = nu_t (u_i - mean_j w_j g(theta_tm1; tau_j)) + mean_j g(theta; tau_j)       local direction
    t mod K > 0  theta_i moves along u_i                                                          local update
    t mod K = 0  theta, u = means over the agents; theta moves along u; both go to every agent    server-side adjustment

    paper       here                             paper       here
    θ_i^(t)     Agent.theta                      K           Config.local_steps
    θ_i^(t-1)   Agent.theta_tm1                  D           Config.trajectories
    ũ_i         Agent.u                          D̃           Config.initial_trajectories
    w_ij        estimators.importance_weights    α_t, ν_t    Config.stepsize, Config.momentum and their rules
    g(θ; τ)     gradients.policy_gradient        γ           Config.gamma

What the paper leaves open, or prints otherwise, and what is done here:
- ∇π in the policy gradient is read as ∇log π, and REINFORCE uses the discounted return, as J does.
- t = 1 is defined twice; here the D̃ initial trajectories *are* step 1. They are drawn in batches of D.
- After a synchronisation θ^(t-1) is the average θ̄ before the server-side step, as in the proof. It is recomputed
  from the download (`steps`: the last move is a function of what was downloaded), so it costs no bytes.
- With `--env-steps` a trajectory is a segment of H steps; the value of the state where it is cut stands for the rest.
- The old policy is evaluated with the current observation normaliser, which is refreshed once a round.
- On frames, value function and policy share a trunk. With Adam the error of the value shapes it, too. Its gradient is
  remembered in u without a correction: that of a value changes too much from step to step (with it u grew to several
  times the length of g on Pong).
- Everything in Config beyond the paper's symbols is ours; `presets/*.toml` has the printed settings as "paper".

Ablations are settings: momentum=0 is FedAvg-PG, correction="none" heavy-ball, weights="none" the correction without
importance weights, server_adjustment=false averages θ only and leaves every direction with its agent.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mfpo.algorithms.mfpo_config import Config
from mfpo.learning import acting, diagnostics, estimators, normalisation, schedules, steps, trees
from mfpo.learning import critic as value_function
from mfpo.learning.gradients import Cost, log_ratio, policy_gradient, reweighted_gradient
from mfpo.learning.policies import Policy, distributions
from mfpo.learning.timeline import sample_live
from mfpo.types import Algorithm, Array, EnvSpec, Key, Metrics, Plan, PyTree, Reference, Trajectories

NAMES = ("mfpo",)


class Server(NamedTuple):
    """The global policy, the shared direction and what the chosen options share besides (an unused one is empty)."""

    theta: PyTree
    u: PyTree
    t: Array  # steps taken so far
    step: PyTree  # of the step rule
    obs: PyTree  # Statistics of all observations
    critic: PyTree  # Critic


Download = Server  # an agent is told all the server knows; u and step are empty without server-side adjustment


class Upload(NamedTuple):
    """What the server averages."""

    theta: PyTree
    u: PyTree
    step: PyTree
    obs: PyTree  # Statistics of this round's observations
    critic: PyTree  # Share


class Agent(NamedTuple):
    """Private to the node."""

    theta: PyTree
    theta_tm1: PyTree
    u: PyTree
    t: Array
    gathered: Array  # batches in the initial direction so far
    step: PyTree
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
    nu: schedules.Schedule


def make(config: Config, spec: EnvSpec, agents: int) -> Algorithm:
    """MFPO for an environment and a number of agents (only the theorem's schedules depend on the latter)."""
    c = config
    policy = acting.policy_for(spec, c.hidden, c.activation, c.initial_std, c.squash, c.least_std, c.state_std)
    rule = steps.make(c.step, c.step_memory, c.adam_beta1, c.adam_beta2, c.cg_iterations, c.cg_damping)
    parts = Parts(c, spec, policy, rule, *schedules.make(c, agents))
    batches = max(c.initial_trajectories // c.trajectories, 1)

    return Algorithm(
        plan=Plan(c.local_steps, c.trajectories, initial_steps=batches - 1, segment=c.segment),
        init=lambda key: init(parts, key),
        join=lambda key: join(parts, key),
        download=lambda server: server if config.server_adjustment else server._replace(u=(), step=()),
        receive=lambda agent, download: receive(parts, agent, download),
        actor=lambda side: acting.Actor(policy.unravel(side.theta), side.obs),
        act=partial(acting.act, policy),
        ready=acting.ready,
        greedy=partial(acting.greedy, policy),
        learn=lambda agent, batch, key: learn(parts, batches, agent, batch, key),
        upload=lambda agent: upload(parts, agent),
        merge=lambda server, uploads, mask, key: merge(parts, server, uploads, mask),
        reference=reference(parts) if c.server_adjustment else None,
    )


def init(parts: Parts, key: Key) -> Server:
    """A fresh policy; no direction yet."""
    c, spec = parts.config, parts.spec
    key_theta, key_phi = jax.random.split(key)
    theta = parts.policy.init(key_theta)
    obs = normalisation.start(spec, c.normalise_observations)
    critic = value_function.init(key_phi, acting.feature_count(spec), c.value_hidden) if c.baseline == "value" else ()
    return Server(theta, trees.zeros_like(theta), jnp.int32(0), parts.rule.init(theta), obs, critic)


def join(parts: Parts, key: Key) -> Agent:
    """An agent that has heard nothing yet; its first download fills it."""
    s = trees.zeros_like(init(parts, key))
    critic = value_function.join(s.critic) if s.critic else ()
    return Agent(s.theta, s.theta, s.u, s.t, jnp.int32(0), s.step, s.obs, s.obs, critic)


def receive(parts: Parts, agent: Agent, download: Download) -> Agent:
    """Continue from the global policy. The direction, too, unless it stays private (no server-side adjustment)."""
    if parts.config.server_adjustment:
        last_move = parts.rule.displacement(download.step, download.u, parts.alpha(download.t))
        theta_tm1 = trees.where(download.t > 0, trees.sub(download.theta, last_move), download.theta)
        u, step = download.u, download.step
    else:  # an agent that missed a round has no usable previous policy
        up_to_date = (agent.t == download.t) & (download.t > 0)
        theta_tm1 = trees.where(up_to_date, agent.theta_tm1, download.theta)
        u, step = agent.u, agent.step
    return Agent(
        theta=download.theta,
        theta_tm1=theta_tm1,
        u=u,
        t=download.t,
        gathered=jnp.where(download.t == 0, 0, agent.gathered),
        step=step,
        obs=download.obs,
        obs_seen=trees.zeros_like(download.obs),
        critic=value_function.receive(agent.critic, download.critic) if download.critic else (),
    )


def learn(parts: Parts, batches: int, agent: Agent, batch: Trajectories, key: Key) -> tuple[Agent, Metrics]:
    """One local step: a direction from fresh trajectories and, unless the server takes it, the move along it."""
    c = parts.config
    key_fisher, key_critic = jax.random.split(key)
    obs = acting.seen(parts.spec, agent.obs, batch)
    agent, advantage, target, critic_metrics = advantages(parts, agent, obs, batch, key_critic)
    nu = parts.nu(agent.t + 1)
    g, g_tm1, weight_metrics = gradients(parts, agent, obs, batch, advantage, error(parts, agent, target, nu))

    starting = agent.t == 0
    gathered = agent.gathered + starting
    u_first = trees.axpy(1.0 / jnp.maximum(gathered, 1), trees.sub(g, agent.u), agent.u)
    u_next = trees.add(trees.scale(nu, trees.sub(agent.u, g_tm1)), g)
    u = trees.where(starting, u_first, u_next)

    complete = ~starting | (gathered == batches)  # false while the initial direction is being gathered
    t = agent.t + complete
    where = sample_live(batch, key_fisher, c.fisher_samples)
    policies = lambda network: distributions(parts.policy, network, obs[where])  # noqa: E731
    fisher = steps.fisher_of(policies, parts.policy.fisher, agent.theta, parts.policy.unravel)
    step = trees.where(complete, parts.rule.absorb(agent.step, u, fisher), agent.step)
    moves = complete & ((t % c.local_steps != 0) | (not c.server_adjustment))
    move = parts.rule.displacement(step, u, parts.alpha(t))
    norms = {"direction_norm": trees.norm(u), "gradient_norm": trees.norm(g)}
    agent = agent._replace(
        theta=trees.where(moves, trees.add(agent.theta, move), agent.theta),
        theta_tm1=trees.where(moves, agent.theta, agent.theta_tm1),
        u=u,
        t=t,
        gathered=gathered,
        step=step,
        obs_seen=normalisation.observe(agent.obs_seen, batch),
    )
    return agent, norms | weight_metrics | critic_metrics


def error(parts: Parts, agent: Agent, target: Array, nu: Array) -> Cost | None:
    """The error of the value, where it shapes the trunk that value and policy share.

    Only Adam can add the two: its steps have no unit, where the other rules measure a step by what the policy does.
    The correction subtracts nothing of it, so that u adds it up: with the share 1 - nu it becomes a running mean.
    """
    c = parts.config
    if parts.policy.features is None or c.baseline != "value" or c.step != "adam" or not c.value_weight:
        return None
    share = 1 - nu if c.correction == "importance" else 1
    return value_function.error(agent.critic.critic, target, c.value_weight * share, c.activation)


def gradients(
    parts: Parts, agent: Agent, obs: Array, batch: Trajectories, advantage: Array, cost: Cost | None
) -> tuple[PyTree, PyTree, Metrics]:
    """g(theta; tau) and w g(theta_tm1; tau), averaged over the batch of trajectories.

    Heavy-ball replaces the second by the first, which makes u a running mean of gradients.
    """
    c = parts.config
    g, log_prob = policy_gradient(parts.policy, agent.theta, obs, batch, advantage, c.entropy, cost=cost)
    if c.correction == "none" or (c.momentum_rule == "constant" and c.momentum == 0):
        return g, g, {}
    old, weigh = agent.theta_tm1, partial(estimators.importance_weights, kind=c.weights, cap=c.weight_cap)
    if c.weights in estimators.OF_ONE_STEP:
        g_tm1, w = reweighted_gradient(parts.policy, old, log_prob, obs, batch, advantage, c.entropy, weigh)
    else:
        w = weigh(log_ratio(parts.policy, old, log_prob, obs, batch))
        w = jnp.where(batch.live, w, 0.0)  # where nothing happened, a weight may still be infinite
        g_tm1, _ = policy_gradient(parts.policy, old, obs, batch, w * advantage, c.entropy, w)
    return g, g_tm1, estimators.weight_spread(w, batch.live)


def advantages(
    parts: Parts, agent: Agent, obs: Array, batch: Trajectories, key: Key
) -> tuple[Agent, Array, Array, Metrics]:
    """The coefficient of grad log pi at every step, and what a critic, if there is one, was fitted to after its use."""
    c, target = parts.config, jnp.zeros(batch.live.shape)
    metrics: Metrics = {}
    if agent.critic:
        obs, last_obs = acting.features(parts.policy, agent.theta, agent.obs, obs, batch)
        options = value_function.options_of(c)
        critic, (a, target, loss) = value_function.advantages(agent.critic, obs, last_obs, batch, key, options)
        agent, metrics = agent._replace(critic=critic), {"value_loss": loss}
    else:
        a = estimators.monte_carlo_advantage(batch, c.gamma, c.estimator, c.baseline)
    if c.discount_states and c.estimator == "gpomdp":
        a = a * c.gamma ** jnp.arange(a.shape[0])[:, None]
    if c.normalise_advantages:
        a = jnp.clip(estimators.standardise(a, batch.live), -c.advantage_cap, c.advantage_cap)
    return agent, a, target, metrics


def upload(parts: Parts, agent: Agent) -> Upload:
    """theta and u, and what the chosen options have the server average besides."""
    u, step = (agent.u, agent.step) if parts.config.server_adjustment else ((), ())
    critic = value_function.share(agent.critic) if agent.critic else ()
    return Upload(agent.theta, u, step, agent.obs_seen, critic)


def merge(parts: Parts, server: Server, uploads: Upload, mask: Array) -> tuple[Server, Metrics]:
    """Average what the agents sent, then take the server-side step along the averaged direction."""
    t = server.t + parts.config.local_steps
    alpha = parts.alpha(t)
    mean, u, step = trees.masked_mean((uploads.theta, uploads.u, uploads.step), mask)
    if parts.config.server_adjustment:
        theta = trees.add(mean, parts.rule.displacement(step, u, alpha))
    else:
        theta, u, step = mean, server.u, server.step
    heard = Server(
        theta=theta,
        u=u,
        t=t,
        step=step,
        obs=normalisation.merge_all(server.obs, uploads.obs, mask),
        critic=value_function.merge(server.critic, uploads.critic, mask) if server.critic else (),
    )
    metrics = {"drift": trees.drift(uploads.theta, mean, mask), "stepsize": alpha}
    if parts.config.server_adjustment:
        metrics |= diagnostics.consensus(uploads.u, u, mask)
    return trees.where(jnp.any(mask), heard, server), metrics


def reference(parts: Parts) -> Reference:
    """To compare u with grad J: an agent at the mean policy, before the server-side step, that sees as in that round.

    Its critic is the server's, and stays as it is.
    """

    def agent(before: Server, after: Server) -> Agent:
        there = receive(parts, join(parts, jax.random.key(0)), after)
        return there._replace(theta=there.theta_tm1, obs=before.obs)

    def gradient(agent: Agent, batch: Trajectories) -> PyTree:
        obs = acting.seen(parts.spec, agent.obs, batch)
        # the critic that this trains is thrown away
        _, advantage, target, _ = advantages(parts, agent, obs, batch, jax.random.key(0))
        cost = error(parts, agent, target, jnp.float32(0.0))
        return policy_gradient(parts.policy, agent.theta, obs, batch, advantage, parts.config.entropy, cost=cost)[0]

    return Reference(agent, lambda agent: agent.u, gradient)
