"""Names of environments: what Gymnasium, or a module that is named with them, has registered."""

import importlib
import os
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mfpo import registry
from mfpo.envs.place import elsewhere
from mfpo.errors import ConfigError, MissingExtra, UnknownName, did_you_mean


def find(name: str) -> Any:
    """The registration (a Gymnasium `EnvSpec`) that the name stands for."""
    try:
        import gymnasium
    except ImportError:
        near = did_you_mean(name, registry.names("mfpo.envs"))
        if near.startswith("Did you mean"):
            raise UnknownName(f"There is no environment called {name!r}. {near}") from None
        raise MissingExtra(f"The environment {name!r}", "gymnasium") from None
    module, colon, env_id = name.rpartition(":")
    if colon and not (module and env_id):
        raise ConfigError(f"{name!r} names no environment; write package.module:EnvId, as in my_file:Heating-v0.")
    before = set(gymnasium.registry)
    if colon:
        _import(name, module)
    if env_id in gymnasium.registry:
        return gymnasium.registry[env_id]
    if colon:
        items = gymnasium.registry.items()
        ours = [key for key, known in items if key not in before or _is_from(module, known.entry_point)]
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
        with elsewhere:
            importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        hint = f" It must be installed, or lie in this directory ({here})." if absent else ""
        raise ConfigError(
            f"For the environment {name!r} the module {module!r} could not be imported: {type(error).__name__}: "
            f"{error}.{hint}"
        ) from error


def _is_from(module: str, entry_point: Any) -> bool:
    home = entry_point if isinstance(entry_point, str) else str(getattr(entry_point, "__module__", ""))
    return re.split("[.:]", home)[0] == module.partition(".")[0]


def _nearest(env_id: str, known: Iterable[str]) -> str:
    """Its newest version, or else names that look alike."""
    base = re.sub(r"-v\d+$", "", env_id)
    versions = [int(key.rpartition("-v")[2]) for key in known if re.fullmatch(re.escape(base) + r"-v\d+", key)]
    if versions:
        return f"Did you mean {base}-v{max(versions)}?"
    return textwrap.shorten(did_you_mean(env_id, known), 300, placeholder=" ...")
