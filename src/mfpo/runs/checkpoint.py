"""Checkpoints: the whole state of training after a round, the last two of them.

Two, because a disk can damage the newest; then training goes on from the one before, to the very same result.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mfpo.errors import RunError
from mfpo.runs import files, tensors
from mfpo.types import PyTree

FORMAT = 1
NAME = re.compile(r"round-(\d+)\.safetensors")


class Progress(NamedTuple):
    """How far a run is: everything cumulative, over all agents unless it says otherwise, and over all resumes."""

    round: int = 0
    env_steps: int = 0
    trajectories_per_agent: float = 0  # on average; a whole number if all take part in every round
    bytes_up: int = 0
    bytes_down: int = 0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0


def path_of(folder: Path, round: int) -> Path:
    """Where a round's checkpoint is."""
    return folder / f"round-{round:06d}.safetensors"


def save(folder: Path, state: PyTree, progress: Progress) -> None:
    """Write the checkpoint of a round, then remove all but it and the one before."""
    content = tensors.pack(state, {"format": FORMAT, "progress": progress._asdict()})
    files.replace(path_of(folder, progress.round), *content)
    for round, path in _found(folder):
        if round not in (progress.round, progress.round - 1):
            path.unlink(missing_ok=True)


def latest_round(folder: Path) -> int:
    """The round of the newest checkpoint, sound or not; 0 without any."""
    return max((round for round, _ in _found(folder)), default=0)


def load(folder: Path, template: PyTree, notice: Callable[[str], object], part: str = "") -> tuple[PyTree, Progress]:
    """State and progress of the newest sound checkpoint. Without any, the template (the state before round 1).

    Of the state, a `part` alone may be asked for, by the name of its field. A damaged file is skipped with a notice; a
    sound one that does not fit the template is an error, because an older one would not fit either.
    """
    found = sorted(_found(folder), reverse=True)
    for index, (_, path) in enumerate(found):
        try:
            named, metadata = tensors.unpack(path.read_bytes())
        except tensors.Damaged as damage:
            before = found[index + 1][0] if index + 1 < len(found) else 0
            instead = f"going back to the checkpoint of round {before}" if before else "starting again from round 1"
            notice(f"The checkpoint {path} {damage}; {instead}.")
            continue
        except OSError as error:
            raise RunError(f"Cannot read the checkpoint {path}: {files.reason(error)}.") from error
        if part:
            named = {name.removeprefix(f"{part}/"): x for name, x in named.items() if name.startswith(f"{part}/")}
        return _restore(path, template, named, metadata)
    return template, Progress()


def _restore(
    path: Path, template: PyTree, named: dict[str, np.ndarray], metadata: dict[str, Any]
) -> tuple[PyTree, Progress]:
    if metadata.get("format") != FORMAT:
        raise RunError(
            f"The checkpoint {path} has format {metadata.get('format')}, but this version of mfpo reads format "
            f"{FORMAT}; resume with the version that wrote it."
        )
    try:
        return tensors.fill(template, named), Progress(**metadata["progress"])
    except tensors.Mismatch as mismatch:
        raise RunError(
            f"The checkpoint {path} {mismatch}: it was written with other settings or another version of mfpo. "
            "Restore the config.toml it was written with, or train again under another name."
        ) from mismatch


def _found(folder: Path) -> list[tuple[int, Path]]:
    matches = ((NAME.fullmatch(path.name), path) for path in folder.glob("round-*"))
    return [(int(match[1]), path) for match, path in matches if match]
