"""Any environment of Gymnasium, stepped outside the compiled program. The name is an id, or package.module:EnvId.

What becomes of observations and actions is said in `spaces`. `gymnasium.vector` is not used: it steps finished episodes
too, and its copies cannot differ in their arguments.
"""

import contextlib
import functools
import importlib
import inspect
import math
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mfpo import registry
from mfpo.envs import spaces
from mfpo.errors import ConfigError, CopyFailed, MissingExtra, StepFailed, UnknownName, did_you_mean
from mfpo.types import EnvSpec, HostedEnv, Outcome, World

SEEDS = 2**31  # Gymnasium takes larger ones, but many environments hand theirs to a generator that does not

Vector = NDArray[np.float32]


def make(name: str, horizon: int = 0, world: World | None = None) -> HostedEnv:
    """The environment; episodes are cut after `horizon` steps, or where its registration says.

    Its observations and actions are those of `world` (by default those without any arguments).
    """
    registration = _find(name)
    horizon = horizon or registration.max_episode_steps or 0
    first = _create(name, registration, horizon, world or {})
    first.env.close()
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
            for world in worlds:
                self._copies.append(_create(spec.id, registration, spec.horizon, world))
                _check_same(spec, self._copies[-1].spec, world)
        except BaseException:
            self.close()
            raise

    def reset(self, which: NDArray[np.intp], seeds: NDArray[np.uint64] | None) -> Vector:
        """Begin an episode in each."""
        observation = np.empty((len(which), self._size))
        for row, i in enumerate(which.tolist()):
            copy = self._copies[i]
            try:
                begun = copy.env.reset(seed=None if seeds is None else int(seeds[row]) % SEEDS)
                if not (isinstance(begun, tuple) and len(begun) == 2 and isinstance(begun[1], dict)):
                    raise TypeError("it should return a pair: the observation, and a dict of information")
                observation[row] = copy.encode(begun[0])
            except (Exception, SystemExit) as error:
                raise CopyFailed(i, f"{type(error).__name__}: {error}") from error
        return _float32(observation)

    def step(self, which: NDArray[np.intp], action: NDArray[Any]) -> Outcome:
        """One step in each."""
        n = len(which)
        observation, reward = np.empty((n, self._size)), np.empty(n)
        terminated, truncated = np.empty(n, np.bool_), np.empty(n, np.bool_)
        for row, i in enumerate(which.tolist()):
            copy = self._copies[i]
            try:
                after, gain, terminated[row], truncated[row], _ = copy.env.step(copy.decode(action[row]))
                observation[row] = copy.encode(after)
                reward[row] = gain if type(gain) is float else _number(gain)
            except (Exception, SystemExit) as error:
                raise CopyFailed(i, f"{type(error).__name__}: {error}") from error
        return Outcome(_float32(observation), _float32(reward), terminated, truncated)

    def inner(self, copy: int) -> Any:
        """The environment itself, to draw it."""
        return self._copies[copy].env

    def close(self) -> None:
        """Close the environments."""
        for copy in self._copies:
            with contextlib.suppress(Exception):  # nothing depends on it any more
                copy.env.close()
        self._copies.clear()


def _find(name: str) -> Any:
    """The registration (a Gymnasium `EnvSpec`) that the name stands for."""
    try:
        import gymnasium
    except ImportError:
        near = did_you_mean(name, registry.names("mfpo.envs"))
        if near.startswith("Did you mean"):
            raise UnknownName(f"There is no environment called {name!r}. {near}") from None
        raise MissingExtra(f"The environment {name!r}", "gymnasium") from None
    module, colon, env_id = name.rpartition(":")
    if colon:
        _import(name, module)
    if env_id in gymnasium.registry:
        return gymnasium.registry[env_id]
    if colon:
        ours = [key for key, known in gymnasium.registry.items() if _is_from(module, known.entry_point)]
        hint = _nearest(env_id, ours) if ours else f"It registers none; let it call gymnasium.register(id={env_id!r})."
        raise ConfigError(f"The module {module!r} registers no environment called {env_id!r}. {hint}")
    known = [*gymnasium.registry, *registry.names("mfpo.envs")]
    elsewhere = f"If another package registers it, name the module too: package.module:{env_id}."
    raise UnknownName(f"There is no environment called {name!r}. {_nearest(env_id, known)} {elsewhere}")


def _import(name: str, module: str) -> None:
    here = os.getcwd()
    if module.endswith(".py") or os.sep in module:
        file = Path(module)
        known = f"{file.stem}:{name.rpartition(':')[2]}"
        raise ConfigError(
            f"For the environment {name!r} give the name of a module, not of a file: {known}, in the directory "
            f"{file.resolve().parent}."
        )
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m mfpo` does by itself
    importlib.invalidate_caches()  # the file may be younger than the last look at its directory
    try:
        importlib.import_module(module)
    except Exception as error:
        absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        hint = f" It must be installed, or lie in this directory ({here})." if absent else ""
        raise ConfigError(
            f"For the environment {name!r} the module {module!r} could not be imported: {type(error).__name__}: "
            f"{error}.{hint}"
        ) from error


def _is_from(module: str, entry_point: Any) -> bool:
    home = entry_point if isinstance(entry_point, str) else str(getattr(entry_point, "__module__", ""))
    return re.split("[.:]", home)[0] == module.partition(".")[0]


def _nearest(env_id: str, known: Sequence[str]) -> str:
    """Its newest version, or else names that look alike."""
    base = re.sub(r"-v\d+$", "", env_id)
    versions = [int(key.rpartition("-v")[2]) for key in known if re.fullmatch(re.escape(base) + r"-v\d+", key)]
    if versions:
        return f"Did you mean {base}-v{max(versions)}?"
    return textwrap.shorten(did_you_mean(env_id, known), 300, placeholder=" ...")


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
            given = {key: _like(usual.get(key), value) for key, value in dict(world).items()}
            env: Any = gymnasium.make(
                registration, max_episode_steps=horizon or None, disable_env_checker=True, **given
            )
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise ConfigError(f"The environment {name} needs a package that is not installed: {error}") from error
    except TypeError as error:
        raise ConfigError(_about_arguments(name, arguments, world, error.__cause__ or error)) from error
    except Exception as error:
        how = f" with {_text(world)}" if world else ""
        raise StepFailed(f"The environment {name} cannot be made{how}: {type(error).__name__}: {error}") from error
    try:
        return understand(name, env, horizon)
    except ConfigError:
        env.close()
        raise


def understand(name: str, env: Any, horizon: int) -> Copy:
    """An environment that somebody made, and how we talk to it."""
    size, encode = spaces.encoder(name, env.observation_space)
    if not size:
        possible = f"{spaces.OBSERVATIONS}, of one number at least"
        raise spaces.refusal(name, "observations", env.observation_space, possible)
    action, decode = spaces.action_of(name, env.action_space)
    return Copy(env, EnvSpec(name, (size,), action, horizon), encode, decode)


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


def _like(usual: Any, value: Any) -> Any:
    """`value` as an int or a bool if the usual value is one and nothing is lost."""
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


def _number(reward: Any) -> NDArray[Any]:
    array = np.asarray(reward)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise ValueError(f"the reward is not a number: {textwrap.shorten(repr(reward), 100)}")
    return array.reshape(())


def _float32(array: NDArray[Any]) -> Vector:
    """What is too large becomes infinite; whoever steps the copies checks for that."""
    with np.errstate(over="ignore"):
        return array.astype(np.float32)
