"""What a run directory says, read as plain files: no JAX, so that a figure starts fast and reads runs from anywhere."""

import json
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from mfpo.errors import RunError

Row = dict[str, Any]  # a line of metrics.jsonl


class Record(NamedTuple):
    """A run as it lies on disk, finished or not."""

    path: Path
    settings: dict[str, Any]  # the table [run] of config.toml
    config: dict[str, Any]  # the table of its algorithm
    rows: list[Row]
    summary: dict[str, Any]  # empty while the run is not finished


def load_record(path: str | Path) -> Record:
    """Everything a report needs of the run in `path`."""
    path = Path(path)
    return Record(path, *load_tables(path), load_metrics(path), load_summary(path))


def load_tables(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the run in `path`, and those of its algorithm."""
    file = path / "config.toml"
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
        settings = tables["run"]
        return settings, tables[settings["algorithm"]]
    except FileNotFoundError:
        reason = "it has no config.toml" if path.is_dir() else "there is no such directory"
        raise RunError(f"{path} is not a run: {reason}; give a directory that `mfpo train` made.") from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise RunError(f"{path} cannot be read ({why}); give a directory that `mfpo train` made.") from None
    except (tomllib.TOMLDecodeError, KeyError, TypeError):
        raise RunError(f"{file} is not a run's config.toml; give a directory that `mfpo train` made.") from None


def load_metrics(path: str | Path) -> list[Row]:
    """The rows of metrics.jsonl; a last line that was cut off by a crash is left out."""
    file = Path(path) / "metrics.jsonl"
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError):
        raise RunError(f"{file} cannot be read; check its permissions and that it belongs to a run.") from None
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError
        except ValueError:
            if number == len(lines):
                break
            raise RunError(f"{file}, line {number}, is not a JSON object; the file was damaged or edited.") from None
        rows.append(row)
    return rows


def load_summary(path: Path) -> dict[str, Any]:
    """What summary.json says; empty while there is none."""
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}
