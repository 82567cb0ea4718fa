"""Pendulum-v1: swing a pendulum up and hold it. The equations are Gymnasium's (g = 10)."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mfpo.envs.worlds import check_physics
from mfpo.types import Array, Box, EnvSpec, Key, PureEnv

NAMES = ("Pendulum-v1",)

TIME_STEP = 0.05
MAX_SPEED, MAX_TORQUE = 8.0, 2.0


class World(NamedTuple):
    """What may differ from agent to agent. The names are those of Gymnasium's attributes."""

    g: float = 10.0
    m: float = 1.0
    l: float = 1.0  # noqa: E741


def check(name: str, given: Mapping[str, float]) -> World:
    """The world with these parameters."""
    world = World()._replace(**given)
    check_physics(name, world._asdict(), may_be_zero="g")
    return world


def reset(key: Key) -> Array:
    """angle uniform in ±π (0 is upright), speed uniform in ±1."""
    return jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0) * jnp.array([jnp.pi, 1.0])


def observe(state: Array) -> Array:
    """cos(angle), sin(angle), speed."""
    angle, speed = state
    return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed])


def step(world: World, state: Array, action: Array, key: Key) -> tuple[Array, Array, Array]:
    """One semi-implicit Euler step; never terminates, costs angle² + 0.1 speed² + 0.001 torque²."""
    del key  # the dynamics are deterministic
    angle, speed = state
    torque = jnp.clip(action[0], -MAX_TORQUE, MAX_TORQUE)
    from_upright = (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
    cost = from_upright**2 + 0.1 * speed**2 + 0.001 * torque**2
    acceleration = 3 * world.g / (2 * world.l) * jnp.sin(angle) + 3.0 / (world.m * world.l**2) * torque
    speed = jnp.clip(speed + acceleration * TIME_STEP, -MAX_SPEED, MAX_SPEED)
    return jnp.stack([angle + speed * TIME_STEP, speed]), -cost, jnp.bool_(False)


def at(world: World) -> PureEnv:
    """The environment in a given world."""
    spec = EnvSpec("Pendulum-v1", observation_shape=(3,), action=Box((-MAX_TORQUE,), (MAX_TORQUE,)), horizon=200)
    return PureEnv(spec, reset, observe, partial(step, world), world=World(), at=at)


def make(name: str) -> PureEnv:
    """The environment as everybody knows it."""
    return at(World())
