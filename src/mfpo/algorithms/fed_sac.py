"""Fed-SAC: soft actor-critic from a private replay, averaged over the agents every round.

Soft actor-critic with two critics and a learned temperature (Haarnoja et al. 2018), for discrete actions with exact
expectations (Christodoulou 2019), and FedAvg (McMahan et al. 2017). All losses are those of one soft value,

    V(s; pi, Q) = E_{a ~ pi}[min_j Q_j(s, a) - alpha log pi(a | s)]                               one draw, or a sum
    y           = r + gamma V(s'; pi, target), or r where the episode terminated
    critics     minimise the mean of (Q_j(s, a) - y)² / 2, summed over both
    actor       maximises the mean of V(s; pi, Q)
    alpha       minimises log alpha (entropy - least entropy)
    theta       = (critics, actor, log alpha) moves along Adam's direction for the sum; target += tau (critics - target)
    round       theta = mean of the agents' theta, after K local steps

    usual       here                             usual       here
    π, Q_j      Networks.actor, .critics         K           Config.local_steps
    α           exp(Networks.log_alpha)          D           Config.trajectories
    Q̄_j         Learner.target                   γ           Config.gamma
    H̄           Kind.least_entropy               τ           Config.target_rate

What is done otherwise than in the papers named, or left open where Fed-SAC is only named:
- An agent samples D whole episodes (or segments), then makes `updates_per_step` updates for every step it took.
- The actor's gradient is taken at the critics before their step, so that one vector makes one step.
- Targets and the optimiser's moments stay private, see `replay.receive`; the temperature is averaged.
- Actions are uniformly random until the agents have taken `warmup` steps each, on average.
- With `lookahead` n > 1, y has n rewards, and the entropy only of the step after them.
- Frames go through the network of `images`, which only the critics train; the actor uses what it sees.
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
from mfpo.learning.policies import FIRST_OUTPUT_SCALE, flat
from mfpo.learning.replay import Learner, Rule, Shared, Transitions
from mfpo.learning.schedules import geometric
from mfpo.types import Algorithm, Array, Box, Discrete, EnvSpec, Key, Metrics, Plan, PyTree

NAMES = ("fed_sac",)

LOG_STD = (-5.0, 2.0)  # its range
still = jax.lax.stop_gradient


@dataclass(frozen=True)
class Config(OffPolicyConfig):
    """Every choice of the algorithm; the defaults suit an unknown environment, presets suit known ones."""

    warmup: int = option(100, "environment steps of an agent before its first update, taken at random", least=0)
    initial_temperature: float = option(1.0, "first weight of the entropy", symbol="α₁", above=0)
    least_entropy: float = option(-1.0, "aimed at, per dimension of a continuous action in -1..1", symbol="H̄")
    least_entropy_discrete: float = option(0.3, "aimed at, of a discrete action: this share of log n", least=0, most=1)


class Judges(NamedTuple):
    """What a target exists of: what looks at frames, if there are any, and two critics (a leading axis)."""

    trunk: PyTree
    critics: Layers


class Networks(NamedTuple):
    """All that is learned."""

    judges: Judges
    actor: Layers
    log_alpha: Array


class Actor(NamedTuple):
    """What it takes to act."""

    trunk: PyTree
    actor: Layers
    obs: PyTree  # Statistics
    random: Array  # warming up


class Kind(NamedTuple):
    """What depends on the kind of action: an index, or a place between -1 and 1 in each dimension of a box.

    `output` is that of the actor; all arrays may have leading axes.
    """

    outputs: int  # of the actor
    critic_inputs: int  # beyond the features
    critic_outputs: int
    least_entropy: float
    blank: Array  # an action of the right shape and type
    uniform: Callable[[Key], Array]  # key -> action
    draw: Callable[[Array, Key], tuple[Array, Array]]  # output, key -> action, log pi(action)
    mode: Callable[[Array], Array]  # output -> action
    action: Callable[[Array], Array]  # action -> what the environment takes
    q: Callable[[Layers, Array, Array], Array]  # critics, features, action -> [2, ...]
    soft_value: Callable[[Layers, Array, Array, Array, Key], tuple[Array, Array]]
    # critics, features, output, alpha, key -> V, entropy


def make(config: Config, spec: EnvSpec, agents: int) -> Algorithm:
    """Fed-SAC for an environment; nothing depends on the number of agents."""
    c, kind = config, kind_of(config, spec)
    init_theta, unravel = flat(partial(init_networks, c, spec, kind))
    init_target, unravel_target = flat(lambda key: init_networks(c, spec, kind, key).judges)

    def loss(theta: Array, target: Array, batch: Transitions, key: Key) -> tuple[Array, Metrics]:
        return losses(c, kind, bool(spec.stack), unravel(theta), unravel_target(target), batch, key)

    alpha = geometric(c.stepsize, c.stepsize_decay)
    rule = Rule(loss, c.gamma, c.lookahead, c.samples, c.updates_per_step, c.warmup, alpha, c.target_rate, spec.stack)

    def init(key: Key) -> Shared:
        return memory.start(init_theta(key), spec, c.normalise_observations)

    def join(key: Key) -> Learner:
        return memory.join(init(key), init_target(key), memory.empty(spec, kind.blank, c.capacity))

    def actor(side: Learner | Shared) -> Actor:
        networks = unravel(side.theta)
        return Actor(networks.judges.trunk, networks.actor, side.obs, side.steps < c.warmup)

    def output(actor: Actor, obs: Array) -> Array:
        obs = perceive(actor.obs, obs)
        return apply_mlp(actor.actor, see(actor.trunk, obs) if spec.stack else obs, c.activation)

    def act(actor: Actor, obs: Array, key: Key) -> tuple[Array, Array]:
        action = jnp.where(actor.random, kind.uniform(key), kind.draw(output(actor, obs), key)[0])
        return kind.action(action), action

    return Algorithm(
        plan=Plan(c.local_steps, c.trajectories, segment=c.segment),
        init=init,
        join=join,
        download=lambda server: server,
        receive=memory.receive,
        actor=actor,
        act=act,
        ready=ready,
        greedy=lambda actor, obs: kind.action(kind.mode(output(actor, obs))),
        learn=partial(memory.learn, rule),
        upload=memory.upload,
        merge=lambda server, uploads, mask, key: memory.merge(server, uploads, mask),
    )


def kind_of(config: Config, spec: EnvSpec) -> Kind:
    """The kind of an environment's actions."""
    if isinstance(spec.action, Discrete):
        return _choice(spec.action.n, config)
    if not isinstance(spec.action, Box):
        raise ConfigError(f"fed_sac cannot take several discrete actions at once, as {spec.id} does; use fed_dqn.")
    if not np.isfinite([spec.action.low, spec.action.high]).all():
        raise ConfigError(f"fed_sac squashes actions between bounds, but those of {spec.id} have none; use mfpo.")
    return _vector(spec.action, config)


def _both(critics: Layers, x: Array, activation: str) -> Array:
    return jax.vmap(lambda critic: apply_mlp(critic, x, activation))(critics)


def _choice(n: int, config: Config) -> Kind:
    def q(critics: Layers, features: Array, action: Array) -> Array:
        return jnp.sum(_both(critics, features, config.activation) * jax.nn.one_hot(action, n), axis=-1)

    def draw(output: Array, key: Key) -> tuple[Array, Array]:
        action = jax.random.categorical(key, output).astype(jnp.int32)
        return action, jnp.sum(jax.nn.log_softmax(output) * jax.nn.one_hot(action, n), axis=-1)

    def soft_value(critics: Layers, features: Array, output: Array, alpha: Array, key: Key) -> tuple[Array, Array]:
        p, log_p = jax.nn.softmax(output), jax.nn.log_softmax(output)
        entropy = -jnp.sum(p * log_p, axis=-1)
        worst = jnp.min(_both(critics, features, config.activation), axis=0)
        return jnp.sum(p * worst, axis=-1) + alpha * entropy, entropy

    return Kind(
        outputs=n,
        critic_inputs=0,
        critic_outputs=n,
        least_entropy=config.least_entropy_discrete * float(np.log(n)),
        blank=jnp.int32(0),
        uniform=lambda key: jax.random.randint(key, (), 0, n),
        draw=draw,
        mode=lambda output: jnp.argmax(output, axis=-1).astype(jnp.int32),
        action=lambda action: action,
        q=q,
        soft_value=soft_value,
    )


def _vector(box: Box, config: Config) -> Kind:
    size, low, high = len(box.low), jnp.array(box.low), jnp.array(box.high)

    def q(critics: Layers, features: Array, action: Array) -> Array:
        return _both(critics, jnp.concatenate([features, action], axis=-1), config.activation)[..., 0]

    def draw(output: Array, key: Key) -> tuple[Array, Array]:
        """The Gaussian's density, and less the logarithm of tanh's slope, 1 - tanh(raw)²."""
        mean, log_std = jnp.split(output, 2, axis=-1)
        log_std = jnp.clip(log_std, *LOG_STD)
        noise = jax.random.normal(key, mean.shape)
        raw = mean + jnp.exp(log_std) * noise
        log_slope = 2 * (np.log(2) - raw - jax.nn.softplus(-2 * raw))
        return jnp.tanh(raw), -jnp.sum(0.5 * noise**2 + log_std + 0.5 * np.log(2 * np.pi) + log_slope, axis=-1)

    def soft_value(critics: Layers, features: Array, output: Array, alpha: Array, key: Key) -> tuple[Array, Array]:
        action, log_p = draw(output, key)
        return jnp.min(q(critics, features, action), axis=0) - alpha * log_p, -log_p

    return Kind(
        outputs=2 * size,
        critic_inputs=size,
        critic_outputs=1,
        least_entropy=config.least_entropy * size,
        blank=jnp.zeros(size),
        uniform=lambda key: jax.random.uniform(key, (size,), minval=-1.0),
        draw=draw,
        mode=lambda output: jnp.tanh(output[..., :size]),
        action=lambda action: jnp.clip(low + (high - low) * 0.5 * (action + 1), low, high),
        q=q,
        soft_value=soft_value,
    )


def init_networks(config: Config, spec: EnvSpec, kind: Kind, key: Key) -> Networks:
    """Critics that rate nothing high, and an actor that acts nearly at random."""
    key_trunk, key_actor, *keys = jax.random.split(key, 4)
    trunk = init_trunk(key_trunk, spec.observation_shape) if spec.stack else ()
    n = feature_count(spec)
    sizes = (n + kind.critic_inputs, *config.hidden, kind.critic_outputs)
    critics = jax.vmap(lambda key: init_mlp(key, sizes, 0.1))(jnp.stack(keys))
    actor = init_mlp(key_actor, (n, *config.hidden, kind.outputs), FIRST_OUTPUT_SCALE)
    return Networks(Judges(trunk, critics), actor, jnp.log(config.initial_temperature))


def losses(
    config: Config, kind: Kind, frames: bool, networks: Networks, target: Judges, batch: Transitions, key: Key
) -> tuple[Array, Metrics]:
    """The sum of what critics, actor and temperature minimise; none of it leaks into another's gradient."""
    key_now, key_after = jax.random.split(key)
    look = see if frames else lambda trunk, obs: obs
    policy = partial(apply_mlp, networks.actor, activation=config.activation)
    alpha = jnp.exp(still(networks.log_alpha))

    output = policy(look(networks.judges.trunk, batch.after))
    ahead, _ = kind.soft_value(target.critics, look(target.trunk, batch.after), output, alpha, key_after)
    y = still(batch.reward + batch.discount * ahead)

    features = look(networks.judges.trunk, batch.obs)
    q = kind.q(networks.judges.critics, features, batch.action)
    critic_loss = 0.5 * jnp.mean(jnp.sum((q - y) ** 2, axis=0))

    features, critics = still(features), still(networks.judges.critics)
    value, entropies = kind.soft_value(critics, features, policy(features), alpha, key_now)
    entropy = jnp.mean(entropies)
    temperature_loss = networks.log_alpha * still(entropy - kind.least_entropy)
    metrics = {"q_loss": critic_loss, "q_mean": jnp.mean(q), "entropy": entropy, "temperature": alpha}
    return critic_loss - jnp.mean(value) + temperature_loss, metrics
