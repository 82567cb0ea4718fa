"""Any environment of Gymnasium, stepped outside the compiled program. The name is an id, or package.module:EnvId.

What becomes of observations and actions is said in `spaces`. `gymnasium.vector` is not used: it steps finished episodes
too, and its copies cannot differ in their arguments.
"""

import functools
import inspect
import math
import numbers
import os
import textwrap
import traceback
import warnings
from collections.abc import Callable, Sequence
from copy import copy as copy_of
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mfpo.envs import registrations, spaces
from mfpo.envs.place import elsewhere
from mfpo.errors import ConfigError, CopyFailed, StepFailed, did_you_mean
from mfpo.types import EnvSpec, HostedEnv, Outcome, World

LARGEST = 10**7  # numbers in an observation
SEEDS = 2**31  # Gymnasium takes larger ones, but many environments hand theirs to a generator that does not

Vector = NDArray[np.float32]


def make(name: str, horizon: int = 0, world: World | None = None) -> HostedEnv:
    """The environment; episodes are cut after `horizon` steps, or where its registration says.

    Its observations and actions are those of `world` (by default those without any arguments).
    """
    registration = registrations.find(name)
    horizon = horizon or registration.max_episode_steps or 0
    with elsewhere:
        first = _create(name, registration, horizon, world or {})
        _close(first.env)
    if not horizon:
        raise ConfigError(f"The environment {name} has no time limit of its own; give one with --horizon.")
    return HostedEnv(spec=first.spec, world=None, open=functools.partial(_Copies, registration, first.spec))


class Copy(NamedTuple):
    """A single environment of Gymnasium, and how we talk to it."""

    env: Any
    spec: EnvSpec
    encode: Callable[[Any], NDArray[Any]]  # an observation of the environment -> a flat vector
    decode: Callable[[NDArray[Any]], Any]  # our action -> the environment's


class _Copies:
    """The environments, stepped one after the other in this thread."""

    def __init__(
        self, registration: Any, spec: EnvSpec, worlds: Sequence[World], learning: bool = False, together: bool = False
    ) -> None:
        self._copies: list[Copy] = []
        self._size = spec.observation_shape[0]
        try:
            with elsewhere:
                for world in worlds:
                    self._copies.append(_create(spec.id, registration, spec.horizon, world))
                    _check_same(spec, self._copies[-1].spec, world)
        except BaseException:
            self.close()
            raise

    def reset(self, which: NDArray[np.intp], seeds: NDArray[np.uint64] | None) -> Vector:
        """Begin an episode in each."""
        observation = np.empty((len(which), self._size))
        with elsewhere:
            for row, i in enumerate(which.tolist()):
                copy = self._copies[i]
                try:
                    begun = copy.env.reset(seed=None if seeds is None else int(seeds[row]) % SEEDS)
                    if not (isinstance(begun, tuple) and len(begun) == 2 and isinstance(begun[1], dict)):
                        raise TypeError("it should return a pair: the observation, and a dict of information")
                    observation[row] = copy.encode(begun[0])
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # some, as those of extensions in Rust, are no Exception
                    raise CopyFailed(i, told(error, type(copy.env.unwrapped))) from error
        return _float32(observation)

    def step(self, which: NDArray[np.intp], action: NDArray[Any]) -> Outcome:
        """One step in each."""
        n = len(which)
        observation, reward = np.empty((n, self._size)), np.empty(n)
        terminated, truncated = np.empty(n, np.bool_), np.empty(n, np.bool_)
        with elsewhere:
            for row, i in enumerate(which.tolist()):
                copy = self._copies[i]
                try:
                    after, gain, over, cut, _ = copy.env.step(copy.decode(action[row]))
                    observation[row] = copy.encode(after)
                    reward[row] = gain if type(gain) is float else _number(gain)
                    terminated[row] = over if type(over) is bool else _truth("terminated", over)
                    truncated[row] = cut if type(cut) is bool else _truth("truncated", cut)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    raise CopyFailed(i, told(error, type(copy.env.unwrapped))) from error
        return Outcome(_float32(observation), _float32(reward), terminated, truncated)

    def inner(self, copy: int) -> Any:
        """The environment itself, to draw it."""
        return self._copies[copy].env

    def close(self) -> None:
        """Close the environments."""
        with elsewhere:
            for copy in self._copies:
                _close(copy.env)
        self._copies.clear()


def _close(env: Any) -> None:
    try:
        env.close()
    except KeyboardInterrupt:
        raise
    except BaseException:  # nothing depends on it any more
        return


def told(error: BaseException, of: Any) -> str:
    """What went wrong, and in which line of the class or function `of`, or of a class it inherits from."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = f"{os.sep}gymnasium{os.sep}wrappers{os.sep}"
    if "unpack" in str(error) and frames and theirs in frames[-1].filename and frames[-1].name == "step":
        what = "observation, reward, terminated, truncated, and a dict of information"
        return f"TypeError: its step() should return five values: {what}"
    kinds = inspect.getmro(of) if inspect.isclass(of) else ()
    own = [part for kind in kinds if not kind.__module__.startswith("gymnasium.") for part in vars(kind).values()]
    files = {function.__code__.co_filename for function in own or [of] if inspect.isfunction(function)}
    where = [
        f"line {frame.lineno} of {os.path.basename(frame.filename)}" for frame in frames if frame.filename in files
    ]
    text = f": {error}" if str(error) else ""
    return f"{type(error).__name__}{text}" + (f", in {where[-1]}" if where else "")


def _create(name: str, registration: Any, horizon: int, world: World) -> Copy:
    """One environment. Gymnasium's checker is off: it costs nothing measurable, but it prints warnings."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    arguments: dict[str, Any] = {}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"gymnasium\.")
            creator = registration.entry_point
            if creator is None:
                raise TypeError("only a vectorised version is registered; register a single environment as entry_point")
            creator = load_env_creator(creator) if isinstance(creator, str) else creator
            arguments = _arguments(creator)
            if inspect.isclass(creator) and not issubclass(creator, gymnasium.Env):
                raise TypeError(f"its class {creator.__qualname__} is not a gymnasium.Env; let it inherit from that")
            usual = arguments | registration.kwargs
            given = {key: _like(name, key, usual.get(key), value) for key, value in dict(world).items()}
            filled = copy_of(registration)  # whose arguments may have the names of some of `gymnasium.make`
            filled.kwargs = registration.kwargs | given
            env: Any = gymnasium.make(filled, max_episode_steps=horizon or None, disable_env_checker=True)
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise ConfigError(f"The environment {name} needs a package that is not installed: {error}") from error
    except TypeError as error:
        raise ConfigError(_about_arguments(name, arguments, world, error.__cause__ or error)) from error
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as error:
        how = f" with {_text(world)}" if world else ""
        raise StepFailed(f"The environment {name} cannot be made{how}: {told(error, creator)}") from error
    try:
        return understand(name, env, horizon)
    except ConfigError:
        _close(env)
        raise


def understand(name: str, env: Any, horizon: int) -> Copy:
    """An environment that somebody made, and how we talk to it."""
    seen, done = (_space(name, env, what) for what in ("observation_space", "action_space"))
    size, encode = spaces.encoder(name, seen)
    if not 0 < size <= LARGEST:
        possible = f"{spaces.OBSERVATIONS}, of one number at least and {LARGEST:,} at most"
        raise spaces.refusal(name, "observations", seen, possible)
    action, decode = spaces.action_of(name, done)
    return Copy(env, EnvSpec(name, (size,), action, horizon), encode, decode)


def _space(name: str, env: Any, what: str) -> Any:
    found = getattr(env, what, None)
    if found is None:
        raise ConfigError(
            f"The environment {name} has no {what}; set it in its class or in __init__, as in "
            f"self.{what} = gymnasium.spaces.Discrete(3)."
        )
    return found


def _arguments(creator: Any) -> dict[str, Any]:
    """The keyword arguments it takes, with their defaults; those it hands on to its base classes included."""
    bases = inspect.getmro(creator)[:-1] if inspect.isclass(creator) else ()
    makers: list[Any] = [vars(base)["__init__"] for base in bases if "__init__" in vars(base)] or [creator]
    found: dict[str, Any] = {}
    for maker in makers:
        parameters = inspect.signature(maker).parameters.values()
        by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        found |= {p.name: p.default for p in by_name if p.name not in found}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return {key: default for key, default in found.items() if key not in ("self", "render_mode")}


def _like(name: str, key: str, usual: Any, value: Any) -> Any:
    """`value` as an int, a bool or a text if the usual value is one and nothing is lost."""
    if isinstance(usual, bool) and isinstance(value, str):
        raise ConfigError(f"--world sets {key}={value}, but {name} takes true or false there.")
    if isinstance(usual, str):
        return str(value).lower() if isinstance(value, bool) else str(value)
    for kind in (bool, int):
        if isinstance(usual, kind) and isinstance(value, int | float) and math.isfinite(value) and kind(value) == value:
            return kind(value)
    return value


def _about_arguments(name: str, arguments: dict[str, Any], world: World, error: BaseException) -> str:
    takes = f"It takes {', '.join(arguments)}." if arguments else "It takes no arguments."
    for parameter in dict(world):
        if parameter not in arguments:
            near = did_you_mean(parameter, arguments) if arguments else ""
            hint = f"{near} {takes}" if near.startswith("Did you mean") else takes
            return f"--world sets {parameter!r}, which {name} does not take. {hint}"
    how, reason = f" with {_text(world)}" if world else "", str(error).rstrip(".")
    tail = f" {takes}" if "argument" in reason else ""  # a call that does not fit, and no mistake further inside
    return f"The environment {name} cannot be made{how}: {type(error).__name__}: {reason}.{tail}"


def _text(world: World) -> str:
    return " ".join(f"{key}={value}" for key, value in dict(world).items())


def _check_same(usual: EnvSpec, this: EnvSpec, world: World) -> None:
    """Whether one policy fits both."""
    for what, expected, found in (
        ("observations of shape", usual.observation_shape, this.observation_shape),
        ("the actions", usual.action, this.action),
    ):
        if expected != found:
            raise ConfigError(
                f"With {_text(world) or 'its own parameters'}, {usual.id} has {what} {found}, and not {expected} as in "
                "another agent's world; all share a policy, so all worlds, the server's too, must agree in this."
            )


def _number(reward: Any) -> float:
    if isinstance(reward, numbers.Number) and not isinstance(reward, complex | np.complexfloating):
        return float(reward)  # type: ignore[arg-type]
    array = np.asarray(reward)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise ValueError(f"the reward is not a number: {textwrap.shorten(repr(reward), 100)}")
    return float(array.item())


def _truth(what: str, value: Any) -> bool:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise TypeError(f"{what} is neither true nor false: {textwrap.shorten(repr(value), 100)}")
    return bool(array.item())


def _float32(array: NDArray[Any]) -> Vector:
    """What is too large becomes infinite; whoever steps the copies checks for that."""
    with np.errstate(over="ignore"):
        return array.astype(np.float32)
