"""Errors a user can do something about.

Every message says what was given, what was possible and what to do. The command line prints the message alone and exits
with code 2; anything that is not a `MfpoError` is a bug of ours and keeps its traceback.
"""

import difflib
from collections.abc import Iterable


class MfpoError(Exception):
    """Base of everything the library raises on purpose."""


class ConfigError(MfpoError):
    """A setting that makes no sense: unknown, of the wrong type, or out of range."""


class UnknownName(MfpoError):
    """A name (environment, algorithm, preset, engine ...) that is not registered."""


class RunError(MfpoError):
    """A run directory that cannot be created, read or resumed."""


class Diverged(MfpoError):
    """Training produced numbers that are not finite."""


class StepFailed(MfpoError):
    """The code of an algorithm or an environment raised an exception, which is the `__cause__`."""


class CopyFailed(MfpoError):
    """One copy of a hosted environment failed. Whoever knows whose copy it is makes a sentence of it."""

    def __init__(self, copy: int, reason: str) -> None:
        super().__init__(reason)
        self.copy = copy

    def __reduce__(self) -> tuple[type["CopyFailed"], tuple[int, str]]:
        return CopyFailed, (self.copy, str(self))


class MessageRefused(MfpoError):
    """A message that is not what it must be: of another shape, type, size, run or round, or not finite."""


class MissingExtra(MfpoError):
    """An optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional package; install it with: pip install 'mfpo[{extra}]'")
        self._given = feature, extra

    def __reduce__(self) -> tuple[type["MissingExtra"], tuple[str, str]]:
        return MissingExtra, self._given


def did_you_mean(given: str, possible: Iterable[str]) -> str:
    """A sentence with the nearest possible names, or with all of them if none is near.

    >>> did_you_mean("CartPol-v1", ["CartPole-v1", "Pendulum-v1"])
    'Did you mean CartPole-v1?'
    >>> did_you_mean("x", ["mfpo"])
    'Possible: mfpo.'
    """
    names = sorted(set(possible))
    folded = {name.lower(): name for name in names}
    near = difflib.get_close_matches(given.lower(), folded, n=2, cutoff=0.6)
    if near:
        return f"Did you mean {' or '.join(folded[name] for name in near)}?"
    return f"Possible: {', '.join(names)}."
