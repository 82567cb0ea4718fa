"""A learned value function: every agent fits it to its own steps, the server averages it.

Returns differ by orders of magnitude between environments, so the network predicts them in standard units. When the
statistics of the returns change, the last layer is rescaled so that the predictions do not (van Hasselt et al. 2016).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mfpo.learning import normalisation, steps, trees
from mfpo.learning.estimators import generalised_advantage, reward_to_go
from mfpo.learning.gradients import Cost
from mfpo.learning.nets import Layer, Layers, apply_mlp, init_mlp
from mfpo.learning.normalisation import Statistics
from mfpo.learning.timeline import map_over_time, sample_live
from mfpo.types import Array, Key, PyTree, Trajectories

ADAM = steps.adam(0.9, 0.999)


class Options(NamedTuple):
    """How the critic is used and trained."""

    activation: str
    gamma: float
    gae_lambda: float
    updates: int  # Adam steps per batch
    samples: int  # live steps per Adam step
    stepsize: float
    segments: bool = False  # columns are segments, not whole episodes


def options_of(config: Any) -> Options:
    """What the settings of an algorithm say of its critic."""
    c = config
    training = c.value_updates, c.value_samples, c.value_stepsize
    return Options(c.activation, c.gamma, c.gae_lambda, *training, segments=c.env_steps > 0)


class Critic(NamedTuple):
    """Network and the statistics of the returns it predicts."""

    phi: Layers
    returns: Statistics


class Learner(NamedTuple):
    """What an agent keeps to train its critic."""

    critic: Critic
    optimiser: PyTree
    shared: Statistics  # of returns, as downloaded
    seen: Statistics  # since then


class Share(NamedTuple):
    """What an agent tells the server of its critic."""

    phi: Layers  # in the units of the downloaded statistics
    returns: Statistics  # of this round


def init(key: Key, n_obs: int, hidden: tuple[int, ...]) -> Critic:
    """A critic that predicts zero, roughly."""
    return Critic(init_mlp(key, (n_obs, *hidden, 1), 0.1), normalisation.empty(()))


def value(critic: Critic, obs: Array, activation: str) -> Array:
    """V(obs) in the units of the reward; obs may have leading axes."""
    standard = apply_mlp(critic.phi, obs, activation)[..., 0]
    return critic.returns.mean + normalisation.deviation(critic.returns) * standard


def rescale(critic: Critic, returns: Statistics) -> Critic:
    """The same function, expressed with new statistics."""
    old, new = normalisation.deviation(critic.returns), normalisation.deviation(returns)
    last = critic.phi[-1]
    w, b = last.w * old / new, (last.b * old + critic.returns.mean - returns.mean) / new
    return Critic((*critic.phi[:-1], Layer(w, b)), returns)


def join(critic: Critic) -> Learner:
    """A learner that has trained nothing yet."""
    return Learner(critic, ADAM.init(critic.phi), critic.returns, normalisation.empty(()))


def receive(learner: Learner, critic: Critic) -> Learner:
    """Go on from the server's critic."""
    return learner._replace(critic=critic, shared=critic.returns, seen=normalisation.empty(()))


def share(learner: Learner) -> Share:
    """What goes to the server. Networks can be averaged only if all speak in the same units."""
    return Share(rescale(learner.critic, learner.shared).phi, learner.seen)


def merge(critic: Critic, shares: Share, mask: Array) -> Critic:
    """The average of the agents' critics, in the units of everything seen so far."""
    mean = Critic(trees.masked_mean(shares.phi, mask), critic.returns)
    return rescale(mean, normalisation.merge_all(critic.returns, shares.returns, mask))


class Judged(NamedTuple):
    """What the critic said of a batch."""

    advantage: Array  # [H, D]
    target: Array  # [H, D] the lambda-returns it was fitted to, in its own units
    loss: Array  # the last one of the fit


def error(critic: Critic, target: Array, weight: Array | float, activation: str) -> Cost:
    """What the critic's error costs a policy, where it is to shape the trunk that both share."""
    return Cost(lambda x, y: weight / 2 * (apply_mlp(critic.phi, x, activation)[..., 0] - y) ** 2, target)


def standard(critic: Critic, values: Array) -> Array:
    """Values in the critic's own units."""
    return (values - critic.returns.mean) / normalisation.deviation(critic.returns)


def advantages(
    learner: Learner, obs: Array, last_obs: Array, batch: Trajectories, key: Key, options: Options
) -> tuple[Learner, Judged]:
    """GAE with the critic as it is; then fit it to the lambda-returns."""
    o = options
    returns = reward_to_go(batch.reward, o.gamma, batch.terminated | batch.truncated if o.segments else None)
    seen = normalisation.merge(learner.seen, normalisation.gather(returns, batch.live))
    critic = rescale(learner.critic, normalisation.merge(learner.shared, seen))
    v = map_over_time(lambda x: value(critic, x, o.activation), (obs,), batch.length)
    last_value = value(critic, last_obs, o.activation)
    a = generalised_advantage(batch, v, last_value, o.gamma, o.gae_lambda, o.segments)
    target = standard(critic, a + v)

    def update(i: Array, carry: tuple[Layers, PyTree, Array]) -> tuple[Layers, PyTree, Array]:
        phi, optimiser, _ = carry
        where = sample_live(batch, jax.random.fold_in(key, i), o.samples)
        x, y = obs[where], target[where]
        loss, grad = jax.value_and_grad(lambda p: jnp.mean((apply_mlp(p, x, o.activation)[:, 0] - y) ** 2))(phi)
        optimiser = ADAM.absorb(optimiser, grad, steps.UNKNOWN)
        return trees.add(phi, ADAM.displacement(optimiser, grad, jnp.float32(o.stepsize))), optimiser, loss

    start = (critic.phi, learner.optimiser, jnp.float32(0.0))
    phi, optimiser, loss = jax.lax.fori_loop(0, o.updates, update, start)
    return Learner(Critic(phi, critic.returns), optimiser, learner.shared, seen), Judged(a, target, loss)
