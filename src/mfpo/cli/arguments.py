"""argparse with our manners."""

import argparse
import shutil
from typing import Any, NoReturn

from mfpo.errors import ConfigError, did_you_mean


class Parser(argparse.ArgumentParser):
    """No abbreviations, and errors that are raised as one sentence with a suggestion."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", _Help)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found, in our words."""
        argument, _, problem = message.removeprefix("argument ").partition(": ")
        if message.startswith("the following arguments are required"):
            raise ConfigError(f"`{self.prog}` needs {problem}; see `{self.prog} --help`.")
        if problem.startswith("expected"):
            raise ConfigError(f"{argument} needs a value; see `{self.prog} --help`.")
        if problem.startswith("ignored explicit argument"):
            raise ConfigError(f"{argument} takes no value; leave out what follows the equals sign.")
        raise ConfigError(f"{argument}: {problem}." if message.startswith("argument ") else f"{message}.")

    def refuse(self, unknown: list[str]) -> NoReturn:
        """Complain about the first argument that nothing asked for."""
        given = next((text for text in unknown if text.startswith("-")), unknown[0]).partition("=")[0]
        if not given.startswith("-"):
            raise ConfigError(f"`{self.prog}` has no use for {given!r}; see `{self.prog} --help`.")
        hint = did_you_mean(given, self._option_string_actions)
        if not hint.startswith("Did"):  # nothing is near, and sixty names are no help
            hint = f"See `{self.prog} --help`."
        raise ConfigError(f"There is no option {given} of `{self.prog}`. {hint}")


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=min(120, shutil.get_terminal_size().columns))
