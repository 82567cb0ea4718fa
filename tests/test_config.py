import math
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any

import numpy as np
import pytest

from mfpo import algorithms
from mfpo.config import as_dict, build, field_types, flag, option, validate
from mfpo.errors import ConfigError


@dataclass(frozen=True)
class Dish:
    eggs: int = option(2, "how many", symbol="E", least=1, most=12)
    salt: float = option(0.5, "grams", above=0, most=5)
    spicy: bool = option(False, "with chilli")
    style: str = option("boiled", "how it is done", choices=("boiled", "fried", "poached"))
    minutes: tuple[int, ...] = option((3, 4), "times", least=1)
    shares: tuple[float, ...] = option((), "who gets how much", least=0, most=1)

    def __post_init__(self) -> None:
        validate(self)


def message(**values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        Dish(**values)
    return str(caught.value)


def test_defaults_and_ends_of_ranges_are_fine() -> None:
    Dish()
    assert Dish(eggs=1, salt=5.0, style="poached", minutes=(1,), shares=(0.0, 1.0)).eggs == 1
    assert Dish(eggs=12, salt=1e-9, minutes=()).minutes == ()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"eggs": 0}, "--eggs is 0, but it must be at least 1."),
        ({"eggs": -3}, "--eggs is -3, but it must be at least 1."),
        ({"eggs": 13}, "--eggs is 13, but it must be at most 12."),
        ({"salt": 0.0}, "--salt is 0.0, but it must be above 0."),
        ({"salt": 5.1}, "--salt is 5.1, but it must be at most 5."),
        ({"salt": math.inf}, "--salt is inf, but it must be at most 5."),
        ({"salt": math.nan}, "--salt is not a number; give a number."),
        ({"minutes": (3, 0)}, "--minutes is 0, but it must be at least 1."),
        ({"shares": (0.5, 1.5)}, "--shares is 1.5, but it must be at most 1."),
        ({"style": "boilt"}, "--style is 'boilt'. Did you mean boiled?"),
        ({"style": "x"}, "--style is 'x'. Possible: boiled, fried, poached."),
    ],
)
def test_out_of_range(values: dict[str, Any], expected: str) -> None:
    assert message(**values) == expected


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"eggs": 2.0}, "int"),
        ({"eggs": "2"}, "int"),
        ({"eggs": True}, "int"),
        ({"eggs": None}, "int"),
        ({"salt": "1"}, "float"),
        ({"salt": True}, "float"),
        ({"spicy": 1}, "bool"),
        ({"spicy": "yes"}, "bool"),
        ({"style": 3}, "str"),
        ({"minutes": (3, "4")}, "int"),
        ({"minutes": (True,)}, "int"),
    ],
)
def test_wrong_types(values: dict[str, Any], kind: str) -> None:
    assert message(**values).endswith(f"but it takes a value of type {kind}.")


def test_an_infinite_value_is_fine_where_nothing_bounds_it() -> None:
    @dataclass(frozen=True)
    class Free:
        cap: float = option(math.inf, "as much as you like", above=0)

    validate(Free())


def test_build_takes_what_toml_and_python_callers_write() -> None:
    dish = build(Dish, {"salt": 1, "minutes": [5, 6], "shares": [1, 0.5], "spicy": True}, "The menu")
    assert dish == Dish(salt=1.0, minutes=(5, 6), shares=(1.0, 0.5), spicy=True)
    assert type(dish.salt) is float and type(dish.minutes) is tuple
    assert [type(x) for x in dish.shares] == [float, float]


def test_build_takes_numbers_of_numpy() -> None:
    dish = build(Dish, {"eggs": np.int64(3), "salt": np.float32(0.5), "minutes": np.arange(1, 3)}, "The menu")
    assert (dish.eggs, type(dish.eggs), dish.salt, type(dish.salt)) == (3, int, 0.5, float)
    assert build(Dish, {"eggs": np.array(3), "salt": np.int8(1)}, "The menu") == Dish(eggs=3, salt=1.0)
    assert dish.minutes == (1, 2)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"salt": np.array([0.1, 0.2])}, "--salt is [0.1, 0.2], but it takes a value of type float."),
        ({"salt": np.array([0.1])}, "--salt is [0.1], but it takes a value of type float."),
        ({"salt": np.bool_(True)}, "--salt is True, but it takes a value of type float."),
        ({"eggs": np.array([1, 2])}, "--eggs is [1, 2], but it takes a value of type int."),
        ({"eggs": np.array(2.5)}, "--eggs is 2.5, but it takes a value of type int."),
        ({"minutes": np.int64(4)}, "--minutes is 4, but it takes a tuple of values, as in (64, 64)."),
        ({"minutes": np.array(4)}, "--minutes is 4, but it takes a tuple of values, as in (64, 64)."),
        ({"minutes": np.array([[3, 4]])}, "--minutes is [3, 4], but it takes a value of type int."),
    ],
)
def test_what_is_wrong_is_told_of_numpys_values_too(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Dish, values, "The menu")
    assert str(caught.value) == expected


@pytest.mark.parametrize("value", [True, 2.5, "3"])
def test_build_converts_nothing_else(value: Any) -> None:
    with pytest.raises(ConfigError, match="--eggs"):
        build(Dish, {"eggs": value}, "The menu")


def test_build_does_not_take_a_bool_for_a_float() -> None:
    with pytest.raises(ConfigError, match="--salt is True, but it takes a value of type float."):
        build(Dish, {"salt": True}, "The menu")


def test_build_names_the_source_of_an_unknown_setting() -> None:
    with pytest.raises(ConfigError) as caught:
        build(Dish, {"egs": 3}, "The menu")
    assert str(caught.value) == "The menu has an unknown setting 'egs'. Did you mean eggs?"


@pytest.mark.parametrize("value", [3, "34", None])
def test_a_value_that_is_no_list_is_refused_for_a_list(value: Any) -> None:
    with pytest.raises(ConfigError, match="--minutes"):
        build(Dish, {"minutes": value}, "The menu")


def test_there_and_back_through_plain_values() -> None:
    dish = Dish(eggs=3, minutes=(7,), shares=(0.25,))
    plain = as_dict(dish)
    assert plain["minutes"] == [7] and list(plain) == [f.name for f in fields(Dish)]
    assert build(Dish, plain, "The menu") == dish


def test_field_types() -> None:
    assert field_types(Dish)["eggs"] is int
    assert field_types(Dish)["minutes"] == tuple[int, ...]


def test_flag() -> None:
    assert flag("initial_trajectories") == "--initial-trajectories"


@pytest.mark.parametrize("name", algorithms.list_algorithms())
def test_every_algorithms_config_is_documented_frozen_and_survives_the_trip(name: str) -> None:
    cls = algorithms.config_class(name)
    config = cls()
    assert build(cls, as_dict(config), "It") == config
    hash(config)
    with pytest.raises(FrozenInstanceError):
        setattr(config, fields(config)[0].name, 1)
    for f in fields(config):
        assert f.metadata["help"], f.name
        assert field_types(cls)[f.name] in (int, float, bool, str, tuple[int, ...], tuple[float, ...]), f.name


@pytest.mark.parametrize("name", algorithms.list_algorithms())
def test_every_algorithms_ranges_and_choices_are_enforced(name: str) -> None:
    cls = algorithms.config_class(name)
    bad: list[tuple[str, Any]] = []
    for f in fields(cls):
        kind, rule = field_types(cls)[f.name], f.metadata
        one = type(kind()) if kind in (int, float) else None
        if one and rule["least"] is not None:
            bad.append((f.name, one(rule["least"] - 1)))
        if one and rule["above"] is not None:
            bad.append((f.name, one(rule["above"])))
        if one and rule["most"] is not None:
            bad.append((f.name, one(rule["most"] + 1)))
        if rule["choices"]:
            bad.append((f.name, "nonsense"))
    assert bad
    for field, value in bad:
        with pytest.raises(ConfigError, match=flag(field)):
            cls(**{field: value})
