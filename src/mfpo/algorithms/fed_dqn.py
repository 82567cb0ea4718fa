"""Fed-DQN: deep Q-learning from a private replay, averaged over the agents every round.

Q-learning with a replay and a target network (Mnih et al. 2015), the double estimate (van Hasselt et al. 2016), and
FedAvg (McMahan et al. 2017). An action is a tuple of indices, each with a Q-function of its own, and worth the mean of
these (Seyde et al. 2023): a discrete action has one index, a real vector one per dimension, into `bins` values.

    Q(s, a) = mean_i Q_i(s, a_i; theta)                                                           decoupled
    a*_i    = argmax_a Q_i(s', a; theta)                                                          chosen by theta, ...
    y       = r + gamma mean_i Q_i(s', a*_i; target), or r where the episode terminated           ... judged by target
    theta   moves along Adam's direction for the mean of Huber(Q(s, a) - y); target += tau (theta - target)
    round   theta = mean of the agents' theta, after K local steps

    usual       here                             usual       here
    θ           Learner.theta                    K           Config.local_steps
    θ⁻          Learner.target                   D           Config.trajectories
    τ           Config.target_rate               γ           Config.gamma
    ε           Actor.epsilon                    -           Config.bins

What is done otherwise than in the paper named, or left open where Fed-DQN is only named:
- An agent samples D whole episodes (or segments), then makes `updates_per_step` updates for every step it took.
- With `lookahead` n > 1, y has n rewards, whatever policy took these steps.
- The target follows smoothly instead of being copied once in a while. It stays private, see `replay.receive`.
- ε falls with the steps of an agent, on average over the agents; each index of an action is random by itself.
- Frames go through the network of `images`; rewards are used as they are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfpo.algorithms.off_policy_config import OffPolicyConfig
from mfpo.config import option
from mfpo.errors import ConfigError
from mfpo.learning import replay as memory
from mfpo.learning.acting import feature_count, perceive, ready
from mfpo.learning.images import init_trunk, see
from mfpo.learning.nets import Layers, apply_mlp, init_mlp
from mfpo.learning.policies import NEVER, flat
from mfpo.learning.replay import Learner, Rule, Shared, Transitions
from mfpo.learning.schedules import geometric
from mfpo.types import Algorithm, Array, Discrete, EnvSpec, Key, Metrics, MultiDiscrete, Plan, PyTree

NAMES = ("fed_dqn",)

Rating = Callable[[Array, Array], Array]  # theta, observations [n, ...] -> Q_i(s, j) [n, i, j]


@dataclass(frozen=True)
class Config(OffPolicyConfig):
    """Every choice of the algorithm; the defaults suit an unknown environment, presets suit known ones."""

    target_rate: float = option(0.01, "how fast the target follows, per update", symbol="τ", above=0, most=1)

    lookahead: int = option(3, "rewards summed before the estimate of what follows", symbol="n", least=1, most=100)
    epsilon: float = option(0.02, "least probability of a random action", symbol="ε", least=0, most=1)
    epsilon_steps: int = option(5000, "environment steps of an agent during which ε falls to it from 1", least=1)
    huber: float = option(1.0, "largest error that counts by its square; inf: all do", above=0)
    bins: int = option(5, "values of a dimension of a continuous action", least=2)


class Network(NamedTuple):
    """What looks at frames, if there are any, and what rates actions."""

    trunk: PyTree
    q: Layers


class Actor(NamedTuple):
    """What it takes to act."""

    network: Network
    epsilon: Array
    obs: PyTree  # Statistics


class Grid(NamedTuple):
    """Actions as tuples of indices, the i-th of them 0 .. sizes[i]-1."""

    sizes: tuple[int, ...]
    action: Callable[[Array], Array]  # indices -> what the environment takes

    @property
    def exists(self) -> np.ndarray:
        """[i, j] whether the i-th index may be j."""
        return np.arange(max(self.sizes)) < np.array(self.sizes)[:, None]


def grid_of(spec: EnvSpec, bins: int) -> Grid:
    """The grid of an environment's actions."""
    if isinstance(spec.action, Discrete):
        return Grid((spec.action.n,), lambda index: index[0])
    if isinstance(spec.action, MultiDiscrete):
        return Grid(spec.action.n, lambda index: index)
    low, high = jnp.array(spec.action.low), jnp.array(spec.action.high)
    if not np.isfinite([low, high]).all():
        raise ConfigError(f"fed_dqn discretises actions between bounds, but those of {spec.id} have none; use mfpo.")
    return Grid(
        (bins,) * len(spec.action.low), lambda index: jnp.clip(low + (high - low) * (index / (bins - 1)), low, high)
    )


def make(config: Config, spec: EnvSpec, agents: int) -> Algorithm:
    """Fed-DQN for an environment; nothing depends on the number of agents."""
    c, grid = config, grid_of(spec, config.bins)
    sizes = np.array(grid.sizes)
    init_theta, unravel = flat(partial(init_network, c, spec, grid))
    rate = partial(values, c, spec, grid)
    loss = partial(q_loss, lambda theta, obs: rate(unravel(theta), obs), c.huber)
    alpha = geometric(c.stepsize, c.stepsize_decay)
    rule = Rule(loss, c.gamma, c.lookahead, c.samples, c.updates_per_step, c.warmup, alpha, c.target_rate, spec.stack)

    def init(key: Key) -> Shared:
        return memory.start(init_theta(key), spec, c.normalise_observations)

    def join(key: Key) -> Learner:
        replay = memory.empty(spec, jnp.zeros(sizes.shape, jnp.int32), c.capacity)
        return memory.join(init(key), init_theta(key), replay)

    def actor(side: Learner | Shared) -> Actor:
        epsilon = 1 - (1 - c.epsilon) * jnp.minimum(side.steps / c.epsilon_steps, 1.0)
        return Actor(unravel(side.theta), epsilon, side.obs)

    def best(actor: Actor, obs: Array) -> Array:
        return jnp.argmax(rate(actor.network, perceive(actor.obs, obs)), axis=-1).astype(jnp.int32)

    def act(actor: Actor, obs: Array, key: Key) -> tuple[Array, Array]:
        explore, which = jax.random.uniform(key, (2, len(sizes)))
        anything = jnp.minimum(which * sizes, sizes - 1).astype(jnp.int32)
        index = jnp.where(explore < actor.epsilon, anything, best(actor, obs))
        return grid.action(index), index

    return Algorithm(
        plan=Plan(c.local_steps, c.trajectories, segment=c.segment),
        init=init,
        join=join,
        download=lambda server: server,
        receive=memory.receive,
        actor=actor,
        act=act,
        ready=ready,
        greedy=lambda actor, obs: grid.action(best(actor, obs)),
        learn=partial(memory.learn, rule),
        upload=memory.upload,
        merge=lambda server, uploads, mask, key: memory.merge(server, uploads, mask),
    )


def init_network(config: Config, spec: EnvSpec, grid: Grid, key: Key) -> Network:
    """A network whose Q-values are small."""
    key_trunk, key_q = jax.random.split(key)
    trunk = init_trunk(key_trunk, spec.observation_shape) if spec.stack else ()
    features = feature_count(spec)
    return Network(trunk, init_mlp(key_q, (features, *config.hidden, grid.exists.size), 0.1))


def values(config: Config, spec: EnvSpec, grid: Grid, network: Network, obs: Array) -> Array:
    """Q_i(obs, j) as [..., i, j] for observations [..., *shape]; what does not exist is worth `NEVER`."""
    features = see(network.trunk, obs) if spec.stack else obs
    q = apply_mlp(network.q, features, config.activation)
    return jnp.where(grid.exists, q.reshape(*q.shape[:-1], *grid.exists.shape), NEVER)


def worth(q: Array, index: Array) -> Array:
    """Q of actions [..., i], from the values [..., i, j] of their indices."""
    return jnp.mean(jnp.sum(q * jax.nn.one_hot(index, q.shape[-1]), axis=-1), axis=-1)


def huber(error: Array, bend: float) -> Array:
    """Half the square up to `bend`, from there on a line."""
    inner = jnp.clip(error, -bend, bend)
    return inner * (error - 0.5 * inner)


def q_loss(
    rate: Rating, bend: float, theta: Array, target: Array, batch: Transitions, key: Key
) -> tuple[Array, Metrics]:
    """The mean Huber loss of Q(s, a) against the double estimate."""
    chosen = jnp.argmax(rate(theta, batch.after), axis=-1)
    ahead = worth(rate(target, batch.after), chosen)
    y = jax.lax.stop_gradient(batch.reward + batch.discount * ahead)
    q = worth(rate(theta, batch.obs), batch.action)
    loss = jnp.mean(huber(q - y, bend))
    return loss, {"q_loss": loss, "q_mean": jnp.mean(q)}
