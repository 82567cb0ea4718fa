"""A dataclass becomes flags: name, type, help, symbol, choices and default all come from its fields."""

import argparse
import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any

from mfpo.config import field_types, flag


class Several(tuple[Any, ...]):
    """The values of a number that was given several."""


def add_fields(
    group: Any, cls: type, defaults: Mapping[str, Any], skip: tuple[str, ...] = (), several: bool = False
) -> None:
    """A flag per field. A flag that is not given leaves no trace, so that presets can tell it from a given one.

    If there may be `several` values of a number, separated by commas, they become a `Several`.
    """
    for field in dataclasses.fields(cls):
        if field.name not in skip:
            kind = field_types(cls)[field.name]
            read = several_reader(kind) if several and kind in (int, float) else reader(kind)
            _add_field(group, field, kind, defaults.get(field.name, field.default), read)


def _add_field(
    group: Any, field: "dataclasses.Field[Any]", kind: Any, default: Any, read: Callable[[str], Any]
) -> None:
    rule = field.metadata
    notes = [f"default {_written(default)}"]
    if kind is not bool and rule.get("symbol"):
        notes.insert(0, rule["symbol"])
    options: dict[str, Any] = {
        "dest": field.name,
        "default": argparse.SUPPRESS,
        "help": f"{rule.get('help', '')} ({'; '.join(notes)})".replace("%", "%%"),
    }
    if kind is bool:
        options["action"] = argparse.BooleanOptionalAction
    else:
        choices = rule.get("choices")
        options["metavar"] = "{" + ",".join(choices) + "}" if choices else _placeholder(kind)
        options["type"] = read
    group.add_argument(flag(field.name), **options)


def _placeholder(kind: Any) -> str:
    if typing.get_origin(kind) is tuple:
        item = _placeholder(typing.get_args(kind)[0])
        return f"{item},{item}"
    return {int: "N", float: "X"}.get(kind, "NAME")


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple | list):
        return ",".join(map(_written, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def reader(kind: Any) -> Callable[[str], Any]:
    """Text -> value of type `kind`. Ranges and choices are checked by the dataclass itself."""
    if typing.get_origin(kind) is tuple:
        item = reader(typing.get_args(kind)[0])
        return lambda text: tuple(map(item, text.split(","))) if text.strip() else ()
    name = {int: "a whole number", float: "a number"}.get(kind, "a value")

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {name}") from None

    return read


def several_reader(kind: Any) -> Callable[[str], Any]:
    """Text -> a value of type `kind`, or `Several` of them where there are commas."""
    read = reader(kind)
    return lambda text: Several(read(part.strip()) for part in text.split(",")) if "," in text else read(text)
