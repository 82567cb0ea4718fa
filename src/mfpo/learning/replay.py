"""Learning from what was seen before: a replay, private to its agent, and networks that many agents learn from theirs.

A replay is a ring of slots. Every observation is stored once: what a step led to is in the next slot. So a column of
`Trajectories` is stored as it is, without the slots that mean nothing, and with one more where its last step was
truncated. Of stacked frames a slot holds the newest, and the frames before a column have slots of their own.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mfpo.learning import normalisation, trees
from mfpo.learning import steps as step_rules
from mfpo.learning.acting import perceive
from mfpo.learning.schedules import Schedule
from mfpo.types import Array, EnvSpec, Key, Metrics, PyTree, Trajectories

ADAM = step_rules.adam(0.9, 0.999)
SLOTS = (1_000, 100_000)  # least and most, unless asked for


class Replay(NamedTuple):
    """C slots, the oldest of which are overwritten first."""

    obs: Array  # [C, ...]
    action: Array  # [C, ...]
    reward: Array  # [C]
    live: Array  # [C] a step was taken here
    ends: Array  # [C] the next slot is of another episode: the step terminated it, or a truncated step led here
    step: Array  # [C] the slots of the steps, in the order they were taken: a ring as well
    next_slot: Array  # [] where the next slot is written
    next_step: Array  # [] and the next entry of `step`
    steps: Array  # [] how many can be sampled: the last ones of `step`


class Transitions(NamedTuple):
    """Steps to learn from: r + discount V(after) estimates what each was worth."""

    obs: Array  # [n, ...]
    action: Array  # [n, ...]
    reward: Array  # [n] of the step and those that followed, if several are summed
    after: Array  # [n, ...] the observation they led to; of no meaning where the episode terminated
    discount: Array  # [n] 0 where the episode terminated


def empty(spec: EnvSpec, action: Array, capacity: int) -> Replay:
    """Nothing seen yet. `action` is an example of what is remembered of one; a capacity of 0 means 50 episodes."""
    capacity = capacity or min(max(50 * spec.horizon, SLOTS[0]), SLOTS[1])
    shape, seen = (spec.observation_shape[1:], jnp.uint8) if spec.stack else (spec.observation_shape, jnp.float32)
    flags, zero = jnp.zeros(capacity, bool), jnp.int32(0)
    return Replay(
        obs=jnp.zeros((capacity, *shape), seen),
        action=jnp.zeros((capacity, *action.shape), action.dtype),
        reward=jnp.zeros(capacity),
        live=flags,
        ends=flags,
        step=jnp.zeros(capacity, jnp.int32),
        next_slot=zero,
        next_step=zero,
        steps=zero,
    )


def add(replay: Replay, batch: Trajectories, stack: int = 0) -> Replay:
    """Store a batch, one column after the other; of a batch larger than the ring, the end."""
    capacity, earlier = replay.reward.shape[0], max(stack - 1, 0)
    last_obs = batch.last_obs[:, -1] if stack else batch.last_obs

    def rows(x: Array) -> Array:
        """With a slot for each earlier frame in front, and one at the end for what the last step led to."""
        return jnp.pad(x, [(earlier, 1)] + [(0, 0)] * (x.ndim - 1))

    row = jnp.arange(earlier + batch.live.shape[0] + 1)[:, None]
    live = rows(batch.live)
    led_to = jnp.roll(rows(batch.truncated), 1, axis=0)  # what a truncated step led to is in the slot after it
    over = row > jnp.max(jnp.where(live, row, 0), axis=0)
    obs = jnp.concatenate([batch.obs, last_obs[None]])
    obs = jnp.where(over.reshape(over.shape + (1,) * (obs.ndim - 2)), last_obs, obs)

    kept = live | led_to | (row < earlier)
    number, slots = _count(kept)
    slot = jnp.where(kept & (number >= slots - capacity), (replay.next_slot + number) % capacity, capacity)
    number, steps = _count(live)
    entry = jnp.where(live & (slot < capacity), (replay.next_step + number) % capacity, capacity)
    next_slot = (replay.next_slot + slots) % capacity
    taken = live.reshape(live.shape + (1,) * (batch.action.ndim - 2))
    flags = replay.live.at[slot].set(live, mode="drop")
    cut_off = flags[(next_slot + jnp.arange(earlier)) % capacity]  # steps whose earlier frames are overwritten
    return Replay(
        obs=replay.obs.at[slot].set(obs.astype(replay.obs.dtype), mode="drop"),
        action=replay.action.at[slot].set(jnp.where(taken, rows(batch.action), 0), mode="drop"),
        reward=replay.reward.at[slot].set(rows(batch.reward), mode="drop"),
        live=flags,
        ends=replay.ends.at[slot].set(rows(batch.terminated) | led_to, mode="drop"),
        step=replay.step.at[entry].set(slot, mode="drop"),
        next_slot=next_slot,
        next_step=(replay.next_step + steps) % capacity,
        steps=jnp.sum(flags) - jnp.sum(cut_off),
    )


def _count(present: Array) -> tuple[Array, Array]:
    """The number of every slot that is present [rows, columns], column by column from 0, and how many there are."""
    within = jnp.cumsum(present, axis=0)
    until = jnp.cumsum(within[-1])
    return within - 1 + until - within[-1], until[-1]


def sample(replay: Replay, key: Key, n: int, gamma: float, lookahead: int = 1, stack: int = 0) -> Transitions:
    """n steps, spread evenly over all that are held with a random offset each: every one is equally likely.

    With each go up to `lookahead` - 1 more, as far as its episode was seen.
    """
    capacity = replay.reward.shape[0]
    back = jnp.floor((jnp.arange(n) + jax.random.uniform(key, (n,))) / n * replay.steps).astype(jnp.int32)
    back = jnp.minimum(back, replay.steps - 1)  # rounding must not lead past the oldest
    at = replay.step[(replay.next_step - 1 - back) % capacity]
    now, reward, discount = at, jnp.zeros(n), jnp.ones(n)
    for _ in range(lookahead):
        goes_on = (discount > 0) & replay.live[now]
        reward += jnp.where(goes_on, discount * replay.reward[now], 0.0)
        discount *= jnp.where(goes_on, jnp.where(replay.ends[now], 0.0, gamma), 1.0)
        now = jnp.where(goes_on, (now + 1) % capacity, now)
    return Transitions(_seen(replay, at, stack), replay.action[at], reward, _seen(replay, now, stack), discount)


def _seen(replay: Replay, slot: Array, stack: int) -> Array:
    """The observations of some slots; of frames, those of the same episode, and zeros before it."""
    if not stack:
        return replay.obs[slot]
    slots = (slot[:, None] - jnp.arange(stack)[::-1]) % replay.reward.shape[0]
    ends = replay.ends[slots].at[:, -1].set(False)
    before = jax.lax.cummax(ends.astype(jnp.int8), axis=1, reverse=True) > 0  # an episode ended since this frame
    return jnp.where(before[..., None, None], 0, replay.obs[slots])


class Shared(NamedTuple):
    """What the server knows, tells every agent and hears from it."""

    theta: Array  # all networks, as one vector
    t: Array  # local steps so far
    steps: Array  # environment steps of an agent so far, on average
    obs: PyTree  # Statistics of all observations; in an upload, of those of the round; () if they are not wanted


class Learner(NamedTuple):
    """What an agent knows."""

    theta: Array
    target: Array  # lags behind the first entries of theta
    optimiser: PyTree
    replay: Replay
    t: Array
    steps: Array
    obs: PyTree  # Statistics, as downloaded
    obs_seen: PyTree  # Statistics, since then


class Rule(NamedTuple):
    """How theta is learned from a replay."""

    loss: Callable[[Array, Array, Transitions, Key], tuple[Array, Metrics]]  # of theta, target; the target is constant
    gamma: float
    lookahead: int  # rewards in a transition
    samples: int  # transitions per update
    updates_per_step: float
    warmup: int  # no updates before an agent has taken so many steps
    stepsize: Schedule  # of Adam: t = 1, 2, ... -> alpha
    target_rate: float  # share of its distance to theta that the target moves by in an update
    stack: int = 0


def start(theta: Array, spec: EnvSpec, normalise_observations: bool) -> Shared:
    """The server before the first round."""
    return Shared(theta, jnp.float32(0.0), jnp.float32(0.0), normalisation.start(spec, normalise_observations))


def join(server: Shared, target: Array, replay: Replay) -> Learner:
    """An agent that has heard nothing yet, of such a server and with such a target; its first download fills it."""
    s, target = trees.zeros_like(server), jnp.zeros_like(target)
    return Learner(s.theta, target, ADAM.init(s.theta), replay, s.t, s.steps, s.obs, s.obs)


def receive(agent: Learner, download: Shared) -> Learner:
    """Go on from the server's networks.

    Targets stay with their agents: they forget in some hundred updates what they lagged behind, so that averaging them
    too would add bytes and little else. They begin as what is downloaded first.
    """
    first = download.theta[: agent.target.shape[0]]
    target = jnp.where(agent.replay.steps > 0, agent.target, first)
    seen = trees.zeros_like(download.obs)
    return agent._replace(target=target, obs_seen=seen, **download._asdict())


def learn(rule: Rule, agent: Learner, batch: Trajectories, key: Key) -> tuple[Learner, Metrics]:
    """Remember the batch, then make so many updates for every new step. Reports the metrics of the last one."""
    replay = add(agent.replay, batch, rule.stack)
    steps = jnp.sum(batch.live)
    updates = jnp.ceil(rule.updates_per_step * steps).astype(jnp.int32)
    updates = jnp.where(agent.steps + steps < rule.warmup, 0, updates)
    alpha = rule.stepsize(agent.t + 1)

    def update(i: Array, carry: tuple[Array, Array, PyTree, Metrics]) -> tuple[Array, Array, PyTree, Metrics]:
        theta, target, optimiser, _ = carry
        key_sample, key_loss = jax.random.split(jax.random.fold_in(key, i))
        batch = sample(replay, key_sample, rule.samples, rule.gamma, rule.lookahead, rule.stack)
        batch = batch._replace(obs=perceive(agent.obs, batch.obs), after=perceive(agent.obs, batch.after))
        g, metrics = jax.grad(rule.loss, has_aux=True)(theta, target, batch, key_loss)
        optimiser = ADAM.absorb(optimiser, g, step_rules.UNKNOWN)
        theta = theta + ADAM.displacement(optimiser, g, alpha)
        return theta, target + rule.target_rate * (theta[: target.shape[0]] - target), optimiser, metrics

    now = (agent.theta, agent.target, agent.optimiser)
    shapes = jax.eval_shape(lambda: update(jnp.int32(0), (*now, {})))[3]
    nothing = {name: jnp.zeros(x.shape, x.dtype) for name, x in shapes.items()}
    theta, target, optimiser, metrics = jax.lax.fori_loop(0, updates, update, (*now, nothing))
    seen = normalisation.observe(agent.obs_seen, batch)
    return Learner(theta, target, optimiser, replay, agent.t + 1, agent.steps + steps, agent.obs, seen), metrics


def upload(agent: Learner) -> Shared:
    """What goes to the server; the replay, the target and the optimiser's moments stay."""
    return Shared(agent.theta, agent.t, agent.steps, agent.obs_seen)


def merge(server: Shared, uploads: Shared, mask: Array) -> tuple[Shared, Metrics]:
    """FedAvg: the mean of those who answered."""
    mean: Shared = trees.masked_mean(uploads, mask)
    mean = mean._replace(obs=normalisation.merge_all(server.obs, uploads.obs, mask))
    return trees.where(jnp.any(mask), mean, server), {"drift": trees.drift(uploads.theta, mean.theta, mask)}
