"""The layout of a run directory: claimed without overwriting anything, opened only if it really is one.

config.toml          settings of the run and of its algorithm; reproduces the run
metrics.jsonl        a line per round
checkpoints/         the last two states
policy.safetensors   what was learnt, with policy.json to act with it
summary.json         written last: a run with it is finished
"""

import contextlib
import errno
import itertools
import os
import time
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import tomli_w

from mfpo import algorithms
from mfpo.config import as_dict, build
from mfpo.errors import MfpoError, RunError
from mfpo.runs import files
from mfpo.runs.settings import Settings

try:
    import fcntl
except ImportError:  # not a Unix system: two processes on one run are then not noticed
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
CONFIG, METRICS, CHECKPOINTS = "config.toml", "metrics.jsonl", "checkpoints"
HOME = Path("runs")  # where runs without a given name go, below the working directory


def version() -> str:
    """The installed version of this package."""
    try:
        return metadata.version("mfpo")
    except metadata.PackageNotFoundError:
        return "unknown"


def check_free(path: Path) -> None:
    """Refuse a place that holds anything; an empty folder will do."""
    with _creating(path):
        if (path / CONFIG).exists():
            command = files.resume_command(path)
            raise RunError(f"{path} already holds a run; go on with it by `{command}`, or give another --out.")
        if path.is_dir():
            if not all(entry.name.startswith(files.TEMPORARY) for entry in path.iterdir()):
                raise RunError(f"{path} is a folder with other things in it; give --out a name that is free.")
        elif path.exists() or path.is_symlink():
            raise RunError(f"{path} exists and is not a folder; give --out a name that is free.")


def create(out: Path | None, settings: Settings, config: Any) -> Path:
    """Claim a directory and write its config.toml: the given one, or the first free name for these settings."""
    with _creating(out or HOME):
        if out is None:
            path, made = _claim_free_name(settings), True
        else:
            check_free(out)
            path, made = out, not out.exists()
            path.mkdir(parents=True, exist_ok=True)
        try:
            with locked(path):
                check_free(path)  # again, now that no other process can be at it
                write_config(path, settings, config)
        except OSError:
            if made:
                path.rmdir()  # nothing is in it: the write that failed left nothing
            raise
    return path


@contextlib.contextmanager
def _creating(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"Cannot create the run directory {path}: {files.reason(error)}. Give --out a place that can be written to."
        ) from error


def _claim_free_name(settings: Settings) -> Path:
    """`mkdir` is the test and the claim in one, so that two runs started together get two directories."""
    HOME.mkdir(exist_ok=True)
    stem = f"{settings.env}-{settings.algorithm}-seed{settings.seed}".replace("/", "_")
    for number in itertools.count(1):
        with contextlib.suppress(FileExistsError):
            path = HOME / f"{stem}-{number}"
            path.mkdir()
            return path
    raise AssertionError("unreachable")


def write_config(path: Path, settings: Settings, config: Any) -> None:
    """config.toml: every value, defaults included, so that later defaults cannot change what this run was."""
    document = {
        "format": FORMAT,
        "written_by": f"mfpo {version()}",
        "run": as_dict(settings),
        settings.algorithm: as_dict(config),
    }
    files.replace(path / CONFIG, tomli_w.dumps(document).encode())


def read_config(path: Path) -> tuple[Settings, Any]:
    """Settings and algorithm config of a run directory, or a sentence on why it is not one."""
    file = path / CONFIG
    try:
        if not path.is_dir():
            raise RunError(f"There is no run directory {path}; give the folder that `mfpo train` wrote.")
        document = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{path} is not a run directory: it has no {CONFIG}.") from error
    except OSError as error:
        raise RunError(f"Cannot read {file}: {files.reason(error)}.") from error
    except ValueError as error:  # broken TOML, or not text at all
        raise RunError(f"{file} is not valid TOML ({error}); restore it to use this run.") from error
    return _parse_config(document, file)


def _parse_config(document: dict[str, Any], file: Path) -> tuple[Settings, Any]:
    found = document.pop("format", None)
    if found != FORMAT:
        if isinstance(found, int) and found > FORMAT:
            raise RunError(
                f"{file} has format {found}, but this mfpo ({version()}) reads format {FORMAT}; update mfpo."
            )
        raise RunError(f"{file} was not written by mfpo: it has no `format = {FORMAT}`.")
    document.pop("written_by", None)
    try:
        run = document.pop("run")
        settings = build(Settings, run, f"{file}, table [run],")
        values = document.pop(settings.algorithm)
        config = build(algorithms.config_class(settings.algorithm), values, f"{file}, table [{settings.algorithm}],")
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{file} is incomplete: a table or setting is missing ({error}); restore it.") from error
    except MfpoError as error:
        raise RunError(f"{file} cannot be used: {error}") from error
    if document:
        raise RunError(f"{file} has an unknown entry {min(document)!r}; remove it or update mfpo.")
    return settings, config


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from training the same run. The system frees the lock however the process ends."""
    try:
        descriptor = os.open(path, os.O_RDONLY) if fcntl else -1
    except OSError as error:
        raise RunError(f"Cannot open the run directory {path}: {files.reason(error)}.") from error
    try:
        if fcntl:
            _lock(descriptor, path)
        yield
    finally:
        if fcntl:
            os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    for chance in range(5, 0, -1):  # whoever only looks whether a run is locked holds the lock for a moment
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return  # a file system without locks: go on without
            if chance == 1:
                raise RunError(f"Another process is training {path} now; wait for it, or stop it first.") from error
        time.sleep(0.1)
