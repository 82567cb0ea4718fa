"""One frozen dataclass per thing that can be configured; its fields become flags, TOML keys and documentation.

@dataclass(frozen=True)
class Config:
    stepsize: float = option(0.1, "length of a step", symbol="α", above=0)
"""

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from mfpo.errors import ConfigError, did_you_mean

T = TypeVar("T")


def option(
    default: Any,
    help: str,
    *,
    symbol: str = "",
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A dataclass field with its documentation and its range (`least` and `most` inclusive, `above` exclusive)."""
    rule = {"help": help, "symbol": symbol, "least": least, "above": above, "most": most, "choices": choices}
    return dataclasses.field(default=default, metadata=rule)


def flag(name: str) -> str:
    """The command-line spelling of a field.

    >>> flag("local_steps")
    '--local-steps'
    """
    return "--" + name.replace("_", "-")


def field_types(cls: type) -> dict[str, Any]:
    """Field name -> type, with string annotations resolved."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def validate(config: Any) -> None:
    """Raise a `ConfigError` for the first field with a wrong type or out of its range. Call it in `__post_init__`."""
    for f in dataclasses.fields(config):
        _check(f, field_types(type(config))[f.name], getattr(config, f.name))


def _check(f: "dataclasses.Field[Any]", kind: Any, value: Any) -> None:
    name, rule = flag(f.name), f.metadata
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, tuple):
            raise ConfigError(f"{name} is {value!r}, but it takes a tuple of values, as in (64, 64).")
        for item in value:
            _check(f, typing.get_args(kind)[0], item)
        return
    if not isinstance(value, kind) or (kind in (int, float) and isinstance(value, bool)):
        raise ConfigError(f"{name} is {value!r}, but it takes a value of type {kind.__name__}.")
    if kind is float and math.isnan(value):
        raise ConfigError(f"{name} is not a number; give a number.")
    if rule.get("choices") and value not in rule["choices"]:
        raise ConfigError(f"{name} is {value!r}. {did_you_mean(value, rule['choices'])}")
    bounds = []
    if rule.get("least") is not None and value < rule["least"]:
        bounds.append(f"at least {rule['least']}")
    if rule.get("above") is not None and value <= rule["above"]:
        bounds.append(f"above {rule['above']}")
    if rule.get("most") is not None and value > rule["most"]:
        bounds.append(f"at most {rule['most']}")
    if bounds:
        raise ConfigError(f"{name} is {value}, but it must be {' and '.join(bounds)}.")


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """An instance of `cls` from a mapping (a TOML table, flags). `where` names the source in error messages."""
    types_ = field_types(cls)
    known: dict[str, Any] = {}
    for name, value in values.items():
        if name not in types_:
            raise ConfigError(f"{where} has an unknown setting {name!r}. {did_you_mean(name, types_)}")
        known[name] = _convert(types_[name], value)
    return cls(**known)


def _convert(kind: Any, value: Any) -> Any:
    """What TOML and Python callers naturally write: lists for tuples, whole numbers for floats, NumPy's values."""
    if hasattr(value, "tolist"):  # NumPy itself would make `mfpo --help` slow
        value = value.tolist()
    if typing.get_origin(kind) is tuple and isinstance(value, list | tuple):
        return tuple(_convert(typing.get_args(kind)[0], item) for item in value)
    return float(value) if kind is float and type(value) is int else value


def as_dict(config: Any) -> dict[str, Any]:
    """Plain values, ready for TOML and JSON."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(config).items()}
