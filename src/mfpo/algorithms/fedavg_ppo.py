"""FedAvg-PPO: what a practitioner would try first. Every agent runs PPO, the server averages the networks.

Schulman, Wolski, Dhariwal, Radford, Klimov: "Proximal Policy Optimization Algorithms" (arXiv 1707.06347), and McMahan
et al.: "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.

    K times      A_h = GAE(lambda) of D fresh trajectories, standardised                          advantages
                 E passes in minibatches, Adam on
                   - mean of min(r A, clip(r, 1 - eps, 1 + eps) A) + c H(pi)                      clipped surrogate
                   r = pi_theta(a|s) / pi_sampled(a|s)
    then         theta, phi = means over the agents; both go to every agent                       averaging

    paper     here                               paper     here
    θ         Agent.theta                        ε         Config.clip
    V(s)      learning.critic                    c_1, c_2  Config.value_weight, Config.entropy
    r_t(θ)    exp(log_prob - log_prob_sampled)   K epochs  Config.epochs
    γ, λ      Config.gamma, Config.gae_lambda    M         Config.minibatch

How it differs from the papers:
- The value function is a network of its own with its own Adam steps (`learning.critic`), not a term of one loss. On
  frames it sees the policy's trunk, and there its squared error is a term of the policy's loss, too.
- Adam's moments stay with their agent when the networks are averaged.
- Observations are standardised with statistics that all agents share, refreshed once a round.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mfpo.algorithms.batch_config import BatchConfig
from mfpo.config import option
from mfpo.learning import acting, estimators, normalisation, schedules, steps, trees
from mfpo.learning import critic as value_function
from mfpo.learning.gradients import log_probs
from mfpo.learning.nets import ACTIVATIONS, Layers, apply_mlp
from mfpo.learning.policies import SQUASHES, Policy, distributions, look
from mfpo.learning.timeline import map_over_time, over_time
from mfpo.types import Algorithm, Array, EnvSpec, Key, Metrics, Plan, PyTree, Trajectories

NAMES = ("fedavg_ppo",)
ADAM = steps.adam(0.9, 0.999, 1e-5)


@dataclass(frozen=True)
class Config(BatchConfig):
    """Every choice of the algorithm; the defaults suit an unknown environment, presets suit known ones."""

    gae_lambda: float = option(0.95, "bias against variance of the advantages", symbol="λ", least=0, most=1)

    clip: float = option(0.2, "a probability ratio further from 1 than this earns nothing", symbol="ε", above=0)
    epochs: int = option(10, "passes over a batch", symbol="E", least=1)
    minibatch: int = option(256, "environment steps per Adam step of the policy", symbol="M", least=1)
    entropy: float = option(0.0, "weight of the policy's entropy in the objective, per step", symbol="c", least=0)
    stepsize: float = option(3e-4, "Adam stepsize of the policy", symbol="α", above=0, most=1e6)
    stepsize_decay: float = option(0.99, "factor on the stepsize at every local step", above=0)
    normalise_advantages: bool = option(True, "standardise advantages over a batch")

    value_hidden: tuple[int, ...] = option((64, 64), "hidden units of the value network", least=1)
    value_updates: int = option(40, "Adam steps of the value network per local step", least=1)
    value_samples: int = option(512, "states per Adam step of the value network", least=1)
    value_stepsize: float = option(1e-3, "Adam stepsize of the value network", above=0)
    value_weight: float = option(
        0.5, "of the value's squared error in what shapes the trunk it shares with the policy, for frames", least=0
    )

    hidden: tuple[int, ...] = option((64, 64), "hidden units of the policy network", least=1)
    activation: str = option("tanh", "activation of both networks", choices=tuple(ACTIVATIONS))
    initial_std: float = option(1.0, "first standard deviation of a continuous action", above=0)
    least_std: float = option(0.0, "added to it, as variances add: exploration that does not die out", least=0)
    squash: str = option("tanh", "how a Gaussian sample becomes a bounded action", choices=SQUASHES)
    normalise_observations: bool = option(True, "standardise observations with shared running statistics")


class Server(NamedTuple):
    """The global networks and what is needed to use them."""

    theta: PyTree
    t: Array  # local steps taken so far
    obs: PyTree  # Statistics of all observations, or empty
    critic: PyTree  # Critic


Download = Server  # an agent is told all the server knows


class Upload(NamedTuple):
    """What the server averages."""

    theta: PyTree
    obs: PyTree  # Statistics of this round's observations
    critic: PyTree  # Share


class Agent(NamedTuple):
    """Private to the node."""

    theta: PyTree
    t: Array
    optimiser: PyTree
    obs: PyTree  # Statistics, as downloaded
    obs_seen: PyTree  # Statistics, since then
    critic: PyTree  # Learner


class Parts(NamedTuple):
    """The configured building blocks, shared by all functions of the algorithm."""

    config: Config
    spec: EnvSpec
    policy: Policy
    alpha: schedules.Schedule


def make(config: Config, spec: EnvSpec, agents: int) -> Algorithm:
    """FedAvg-PPO for an environment; the number of agents makes no difference to it."""
    c = config
    policy = acting.policy_for(spec, c.hidden, c.activation, c.initial_std, c.squash, c.least_std)
    parts = Parts(c, spec, policy, schedules.geometric(c.stepsize, c.stepsize_decay))

    return Algorithm(
        plan=Plan(c.local_steps, c.trajectories, segment=c.segment),
        init=lambda key: init(parts, key),
        join=lambda key: join(parts, key),
        download=lambda server: server,
        receive=receive,
        actor=lambda side: acting.Actor(policy.unravel(side.theta), side.obs),
        act=partial(acting.act, policy),
        ready=acting.ready,
        greedy=partial(acting.greedy, policy),
        learn=lambda agent, batch, key: learn(parts, agent, batch, key),
        upload=lambda agent: Upload(agent.theta, agent.obs_seen, value_function.share(agent.critic)),
        merge=lambda server, uploads, mask, key: merge(parts, server, uploads, mask),
    )


def init(parts: Parts, key: Key) -> Server:
    """Fresh networks."""
    c, spec = parts.config, parts.spec
    key_theta, key_phi = jax.random.split(key)
    obs = normalisation.start(spec, c.normalise_observations)
    critic = value_function.init(key_phi, acting.feature_count(spec), c.value_hidden)
    return Server(parts.policy.init(key_theta), jnp.int32(0), obs, critic)


def join(parts: Parts, key: Key) -> Agent:
    """An agent that has heard nothing yet; its first download fills it."""
    s = trees.zeros_like(init(parts, key))
    return Agent(s.theta, s.t, ADAM.init(s.theta), s.obs, s.obs, value_function.join(s.critic))


def receive(agent: Agent, download: Download) -> Agent:
    """Continue from the global networks, with the optimisers as they were."""
    return Agent(
        theta=download.theta,
        t=download.t,
        optimiser=agent.optimiser,
        obs=download.obs,
        obs_seen=trees.zeros_like(download.obs),
        critic=value_function.receive(agent.critic, download.critic),
    )


def learn(parts: Parts, agent: Agent, batch: Trajectories, key: Key) -> tuple[Agent, Metrics]:
    """One local step: advantages of fresh trajectories, then several passes over them."""
    c = parts.config
    key_critic, key_policy = jax.random.split(key)
    obs = acting.seen(parts.spec, agent.obs, batch)
    critic, judged = advantages(parts, agent, obs, batch, key_critic)
    if c.normalise_advantages:
        judged = judged._replace(advantage=estimators.standardise(judged.advantage, batch.live))

    def log_prob(theta: PyTree) -> Array:
        network = parts.policy.unravel(theta)

        def block(obs: Array, action: Array) -> Array:
            return log_probs(parts.policy, distributions(parts.policy, network, obs), action)

        return map_over_time(block, (obs, batch.action), batch.length)

    t, sampled = agent.t + 1, log_prob(agent.theta)
    start, phi = (agent.theta, agent.optimiser), critic.critic.phi
    theta, optimiser = improve(parts, start, parts.alpha(t), phi, obs, batch, judged, sampled, key_policy)
    agent = agent._replace(
        theta=theta,
        t=t,
        optimiser=optimiser,
        obs_seen=normalisation.observe(agent.obs_seen, batch),
        critic=critic,
    )
    return agent, {"value_loss": judged.loss} | change(sampled - log_prob(theta), batch.live, c.clip)


def advantages(
    parts: Parts, agent: Agent, obs: Array, batch: Trajectories, key: Key
) -> tuple[value_function.Learner, value_function.Judged]:
    """GAE with the value function as it is; then the value function is trained."""
    c = parts.config
    obs, last_obs = acting.features(parts.policy, agent.theta, agent.obs, obs, batch)
    options = value_function.options_of(c)
    return value_function.advantages(agent.critic, obs, last_obs, batch, key, options)


def surrogate(log_ratio: Array, advantage: Array, clip: float) -> Array:
    """What an action earns by having become more likely, by exp(log_ratio), under the clipped objective."""
    ratio = jnp.exp(log_ratio)
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def improve(
    parts: Parts,
    start: tuple[PyTree, PyTree],
    alpha: Array,
    phi: Layers,
    obs: Array,
    batch: Trajectories,
    judged: value_function.Judged,
    sampled: Array,
    key: Key,
) -> tuple[PyTree, PyTree]:
    """theta and Adam's moments after `epochs` passes over the live slots in random order.

    Every slot is seen once in a pass; the rest is padding.
    """
    c, policy = parts.config, parts.policy
    live, m = jnp.sum(batch.live), c.minibatch
    slots = [x.reshape(-1, *x.shape[2:]) for x in (obs, batch.action, *judged[:2], sampled)]

    def loss(theta: PyTree, weight: Array, x: Array, action: Array, a: Array, target: Array, sampled: Array) -> Array:
        network = policy.unravel(theta)
        features = look(policy, network, x)
        dist = policy.distribution(network, features)
        log_ratio = jnp.where(weight, jax.vmap(policy.log_prob)(dist, action) - sampled, 0.0)
        gain = surrogate(log_ratio, a, c.clip)
        if c.entropy:
            gain += c.entropy * jax.vmap(policy.entropy)(dist)
        if c.value_weight and policy.features is not None:
            gain -= 0.5 * c.value_weight * (apply_mlp(phi, features, c.activation)[:, 0] - target) ** 2
        return -jnp.sum(jnp.where(weight, gain, 0.0))

    def gradient(theta: PyTree, rows: list[Array], weight: Array) -> PyTree:
        frames, *others = rows
        block = lambda x, weight, *others: (jax.grad(loss)(theta, weight, x, *others), ())  # noqa: E731
        total, _ = over_time(block, (frames, weight, *others), jnp.int32(m), most=m)
        return trees.scale(1 / jnp.maximum(jnp.sum(weight), 1), total)

    def epoch(i: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        draw = jax.random.uniform(jax.random.fold_in(key, i), batch.live.shape)
        order = jnp.argsort(jnp.where(batch.live, draw, 2.0).reshape(-1))  # dead slots last
        order = jnp.concatenate([order, jnp.zeros(m, order.dtype)])

        def update(j: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
            theta, optimiser = carry
            where = jax.lax.dynamic_slice_in_dim(order, j * m, m)
            g = gradient(theta, [x[where] for x in slots], j * m + jnp.arange(m) < live)
            optimiser = ADAM.absorb(optimiser, g, steps.UNKNOWN)
            return trees.add(theta, ADAM.displacement(optimiser, g, alpha)), optimiser

        moved: tuple[PyTree, PyTree] = jax.lax.fori_loop(0, (live + m - 1) // m, update, carry)
        return moved

    result: tuple[PyTree, PyTree] = jax.lax.fori_loop(0, c.epochs, epoch, start)
    return result


def change(log_ratio: Array, live: Array, clip: float) -> Metrics:
    """How far the policy moved, from log pi_sampled(a|s) - log pi(a|s): mean, and how many ratios left the clip."""
    n = jnp.maximum(jnp.sum(live), 1)
    clipped = live & (jnp.abs(jnp.exp(-log_ratio) - 1) > clip)
    return {"kl": jnp.sum(jnp.where(live, log_ratio, 0.0)) / n, "clip_fraction": jnp.sum(clipped) / n}


def merge(parts: Parts, server: Server, uploads: Upload, mask: Array) -> tuple[Server, Metrics]:
    """Average what the agents sent."""
    t = server.t + parts.config.local_steps
    theta = trees.masked_mean(uploads.theta, mask)
    heard = Server(
        theta=theta,
        t=t,
        obs=normalisation.merge_all(server.obs, uploads.obs, mask),
        critic=value_function.merge(server.critic, uploads.critic, mask),
    )
    metrics = {"drift": trees.drift(uploads.theta, theta, mask), "stepsize": parts.alpha(t)}
    return trees.where(jnp.any(mask), heard, server), metrics
