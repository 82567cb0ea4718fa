"""CartPole-v1: keep a pole upright on a cart. The equations are Gymnasium's (Barto et al. 1983)."""

import jax
import jax.numpy as jnp

from mfpo.types import Array, Discrete, EnvSpec, Key, PureEnv

NAMES = ("CartPole-v1",)

GRAVITY = 9.8
MASS_CART, MASS_POLE = 1.0, 0.1
MASS_TOTAL = MASS_CART + MASS_POLE
HALF_LENGTH = 0.5
FORCE = 10.0
TIME_STEP = 0.02
MAX_ANGLE = 12 * 2 * jnp.pi / 360
MAX_POSITION = 2.4


def reset(key: Key) -> Array:
    """x, x_dot, angle, angle_dot, each uniform in ±0.05."""
    return jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)


def step(state: Array, action: Array, key: Key) -> tuple[Array, Array, Array]:
    """One explicit Euler step; every step is worth 1, the one that ends the episode included."""
    del key  # the dynamics are deterministic
    x, x_dot, angle, angle_dot = state
    force = jnp.where(action == 1, FORCE, -FORCE)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    push = (force + MASS_POLE * HALF_LENGTH * angle_dot**2 * sin) / MASS_TOTAL
    angle_acc = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4.0 / 3.0 - MASS_POLE * cos**2 / MASS_TOTAL))
    x_acc = push - MASS_POLE * HALF_LENGTH * angle_acc * cos / MASS_TOTAL
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


def make(name: str) -> PureEnv:
    """The environment."""
    spec = EnvSpec(name, observation_shape=(4,), action=Discrete(2), horizon=500)
    return PureEnv(spec, reset, observe=lambda state: state, step=step)
