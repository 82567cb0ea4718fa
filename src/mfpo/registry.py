"""A folder lists itself: every module of a package that has `NAMES` is registered under those names.

Adding an algorithm or an environment means adding one file; nothing else has to be edited.
"""

import importlib
import pkgutil
from types import ModuleType

from mfpo.errors import UnknownName, did_you_mean


def names(package: str) -> dict[str, str]:
    """Registered name -> module, for a package such as "mfpo.algorithms"."""
    found: dict[str, str] = {}
    for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        module = f"{package}.{info.name}"
        for name in getattr(importlib.import_module(module), "NAMES", ()):
            found[name] = module
    return found


def get(package: str, name: str) -> ModuleType:
    """The module registered under `name`, or an error with a suggestion."""
    found = names(package)
    if name not in found:
        kind = package.rpartition(".")[2].rstrip("s")
        kind = {"env": "environment"}.get(kind, kind)
        raise UnknownName(f"There is no {kind} called {name!r}. {did_you_mean(name, found)}")
    return importlib.import_module(found[name])
