"""Different agents, different worlds: from a line such as "length=0.3..0.7 gravity=9.8,12" to one world per agent.

A range a..b is spread evenly over the agents, a list a,b,c is dealt out in turn, a single value is everybody's.
"""

import contextlib
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from mfpo.errors import ConfigError

HOW = "write it as in --world 'length=0.3..0.7 gravity=9.8,12'"


def parse(text: str, agents: int) -> tuple[tuple[tuple[str, Any], ...], ...]:
    """The parameters of every agent's world as (name, value) pairs; empty without any.

    >>> parse("length=0.5..0.7 gravity=9,10", 3)
    ((('length', 0.5), ('gravity', 9)), (('length', 0.6), ('gravity', 10)), (('length', 0.7), ('gravity', 9)))
    """
    columns = {}
    for part in text.split():
        name, equals, values = part.partition("=")
        if not (name and equals and values):
            raise ConfigError(f"--world has {part!r}, which is not a parameter and its values; {HOW}.")
        if name in columns:
            raise ConfigError(f"--world gives {name!r} twice; give each parameter once, {HOW}.")
        columns[name] = _spread(name, values, agents)
    return tuple(tuple((name, values[i]) for name, values in columns.items()) for i in range(agents)) if columns else ()


def _spread(name: str, text: str, agents: int) -> list[Any]:
    low, dots, high = (_value(part) for part in text.partition(".."))
    numbers = [isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high)]
    if dots and any(numbers):  # without any, it is a path such as ../levels
        if not all(numbers):
            raise ConfigError(f"--world has the range {name}={text!r}, but both ends must be numbers; {HOW}.")
        return [round(low + (high - low) * i / max(agents - 1, 1), 12) for i in range(agents)]
    values = [_value(item) for item in text.split(",")]
    return [values[i % len(values)] for i in range(agents)]


def _value(text: str) -> Any:
    """A truth, a number or a text. A number is one only as people write it: 2024_01 and 007 are texts."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"[+-]?(0|[1-9]\d{,17})", text):
        return int(text)
    with contextlib.suppress(ValueError):
        if not re.match(r"[+-]?0\d|.*_", text):
            return float(text)
    return text


def check_physics(name: str, world: Mapping[str, float], may_be_zero: str) -> None:
    """Raise a `ConfigError` unless each quantity of the world is finite and greater than 0; one may be 0.

    The equations go on with other numbers, too: a policy would be trained for a world that cannot be. They are in 32
    bits, where 1e-50 is 0.
    """
    for key, value in world.items():
        with np.errstate(over="ignore", under="ignore"):
            held = np.float32(value)
        if not (0 < held < math.inf or (key == may_be_zero and held == 0)):
            least = "0 or more" if key == may_be_zero else "greater than 0"
            raise ConfigError(
                f"The world of {name} has {key} = {value}, which has to be finite and {least}, in 32 bits."
            )
