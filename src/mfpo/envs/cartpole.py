"""CartPole-v1: keep a pole upright on a cart. The equations are Gymnasium's (Barto et al. 1983)."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mfpo.envs.worlds import check_physics
from mfpo.types import Array, Discrete, EnvSpec, Key, PureEnv

NAMES = ("CartPole-v1",)

TIME_STEP = 0.02
MAX_ANGLE = 12 * 2 * jnp.pi / 360
MAX_POSITION = 2.4


class World(NamedTuple):
    """What may differ from agent to agent. The names are those of Gymnasium's attributes."""

    gravity: float = 9.8
    masscart: float = 1.0
    masspole: float = 0.1
    length: float = 0.5  # half the pole's
    force_mag: float = 10.0


def check(name: str, given: Mapping[str, float]) -> World:
    """The world with these parameters."""
    world = World()._replace(**given)
    check_physics(name, world._asdict(), may_be_zero="gravity")
    return world


def reset(key: Key) -> Array:
    """x, x_dot, angle, angle_dot, each uniform in ±0.05."""
    return jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)


def step(world: World, state: Array, action: Array, key: Key) -> tuple[Array, Array, Array]:
    """One explicit Euler step; every step is worth 1, the one that ends the episode included."""
    del key  # the dynamics are deterministic
    x, x_dot, angle, angle_dot = state
    mass, moment = world.masscart + world.masspole, world.masspole * world.length
    force = jnp.where(action == 1, world.force_mag, -world.force_mag)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    push = (force + moment * angle_dot**2 * sin) / mass
    angle_acc = (world.gravity * sin - cos * push) / (world.length * (4.0 / 3.0 - world.masspole * cos**2 / mass))
    x_acc = push - moment * angle_acc * cos / mass
    state = jnp.stack(
        [
            x + TIME_STEP * x_dot,
            x_dot + TIME_STEP * x_acc,
            angle + TIME_STEP * angle_dot,
            angle_dot + TIME_STEP * angle_acc,
        ]
    )
    terminated = (jnp.abs(state[0]) > MAX_POSITION) | (jnp.abs(state[2]) > MAX_ANGLE)
    return state, jnp.float32(1.0), terminated


def at(world: World) -> PureEnv:
    """The environment in a given world."""
    spec = EnvSpec("CartPole-v1", observation_shape=(4,), action=Discrete(2), horizon=500)
    return PureEnv(spec, reset, observe=lambda state: state, step=partial(step, world), world=World(), at=at)


def make(name: str) -> PureEnv:
    """The environment as everybody knows it."""
    return at(World())
