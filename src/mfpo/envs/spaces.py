"""Spaces of Gymnasium in our terms: observations become flat vectors, and actions lose their shape."""

import math
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mfpo.errors import ConfigError
from mfpo.types import Box, Discrete, MultiDiscrete

OBSERVATIONS = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
ACTIONS = "Discrete, MultiDiscrete, MultiBinary, and Box of floating-point numbers"
UNBOUNDED = 1e30  # a larger bound stands for none: some environments write the largest number for infinity


def encoder(name: str, space: Any) -> tuple[int, Callable[[Any], NDArray[Any]]]:
    """The size of an observation, and how it becomes a vector: choices are one-hot, bytes divided by their bound."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box | spaces.MultiBinary):
        shape, size = space.shape, math.prod(space.shape)
        if isinstance(space, spaces.Box) and space.dtype == np.uint8:
            most = np.maximum(space.high.ravel(), 1.0)
            return size, lambda value: _numbers(value, shape).ravel() / most
        return size, lambda value: _numbers(value, shape).ravel()
    if isinstance(space, spaces.Discrete):
        one = np.array([space.n]), np.array([space.start])
        return int(space.n), lambda value: _one_hot(_single(value), *one)
    if isinstance(space, spaces.MultiDiscrete):
        many = space.nvec.ravel(), space.start.ravel()
        return sum(map(int, many[0])), lambda value: _one_hot(_numbers(value, space.shape).ravel(), *many)
    if not isinstance(space, spaces.Dict | spaces.Tuple) or not space.spaces:
        raise refusal(name, "observations", space, OBSERVATIONS)
    if isinstance(space, spaces.Dict):
        named = {key: encoder(name, part) for key, part in space.spaces.items()}
        parts, split = list(named.values()), partial(_by_name, tuple(named))
    else:
        parts = [encoder(name, part) for part in space.spaces]
        split = partial(_by_place, len(parts))
    return sum(size for size, _ in parts), lambda value: np.concatenate(
        [encode(part) for (_, encode), part in zip(parts, split(value), strict=True)]
    )


def _by_name(names: tuple[str, ...], value: Any) -> list[Any]:
    if not isinstance(value, Mapping) or not value.keys() >= set(names):
        raise ValueError(f"an observation is {_shown(value)}, but its space is a dict of {', '.join(map(str, names))}")
    return [value[name] for name in names]


def _by_place(parts: int, value: Any) -> Any:
    if not isinstance(value, tuple | list | np.ndarray) or len(value) != parts:
        raise ValueError(f"an observation is {_shown(value)}, but its space is a tuple of {parts} parts")
    return value


def action_of(name: str, space: Any) -> tuple[Discrete | MultiDiscrete | Box, Callable[[NDArray[Any]], Any]]:
    """The actions as we name them, and how one becomes the environment's."""
    from gymnasium import spaces

    if isinstance(space, spaces.Space) and 0 in (space.shape or ()):
        raise refusal(name, "actions", space, f"{ACTIONS}, of one number at least")
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return Discrete(int(space.n)), lambda action: int(action) + start
    if isinstance(space, spaces.MultiDiscrete):
        n = tuple(space.nvec.ravel().tolist())
        return MultiDiscrete(n), lambda action: (action.reshape(space.shape) + space.start).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        twos = MultiDiscrete((2,) * math.prod(space.shape))
        return twos, lambda action: action.reshape(space.shape).astype(space.dtype)
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise refusal(name, "actions", space, ACTIONS)

    def decode(action: NDArray[Any]) -> NDArray[Any]:
        """Rounding may have carried it over a bound."""
        shaped = action.reshape(space.shape).astype(space.dtype)
        return np.asarray(np.minimum(np.maximum(shaped, space.low), space.high))  # faster than np.clip

    most = min(UNBOUNDED, float(np.finfo(space.dtype).max))
    bounds = (x.ravel().astype(np.float64) for x in (space.low, space.high))
    low, high = (np.where(np.abs(x) < most, x, np.copysign(np.inf, x)) for x in bounds)
    return Box(tuple(low.tolist()), tuple(high.tolist())), decode


def refusal(name: str, what: str, space: Any, possible: str) -> ConfigError:
    """What to raise of a space that is not possible."""
    shown = textwrap.shorten(repr(space), 200, placeholder=" ...")
    return ConfigError(f"The environment {name} has {what} in {shown}, which is not supported. Possible: {possible}.")


def _one_hot(value: NDArray[Any], n: NDArray[Any], start: NDArray[Any]) -> NDArray[np.float32]:
    index = value - start
    if not np.all((index >= 0) & (index < n)) or (index.dtype.kind == "f" and np.any(index % 1)):
        raise ValueError(f"the observation {value.tolist()} is outside its space")
    vector = np.zeros(n.sum(), np.float32)
    vector[(np.cumsum(n) - n + index).astype(np.intp)] = 1
    return vector


def _single(value: Any) -> NDArray[Any]:
    return np.array([value]) if type(value) is int else _numbers(value, np.shape(value)).reshape(1)


def _numbers(value: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    array = np.asarray(value)
    if array.shape != shape:
        raise ValueError(f"an observation has the shape {array.shape}, but its space has {shape}")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"an observation does not consist of numbers: {_shown(value)}")
    return array


def _shown(value: Any) -> str:
    return textwrap.shorten(repr(value), 100)
