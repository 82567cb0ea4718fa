"""summary.json: what a run came to. It is written last, so a run that has one is finished."""

import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from mfpo.errors import RunError
from mfpo.runs import directory, files
from mfpo.runs.checkpoint import Progress
from mfpo.runs.settings import Settings

NAME = "summary.json"


def summarise(settings: Settings, progress: Progress, evaluation: dict[str, Any], devices: int) -> dict[str, Any]:
    """Settings, score, cost. Seconds are those of the training rounds alone, over all resumes."""
    described = ("algorithm", "env", "preset", "agents", "rounds", "seed", "engine")
    steps = progress.env_steps
    return {
        **{name: getattr(settings, name) for name in described},
        "devices": devices,
        "evaluation": evaluation,
        **{name: value for name, value in progress._asdict().items() if name != "round"},
        "env_steps_per_second": steps / progress.wall_seconds if progress.wall_seconds else None,
        "env_steps_per_cpu_second": steps / progress.cpu_seconds if progress.cpu_seconds else None,
        "versions": {
            "mfpo": directory.version(),
            **{name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")},
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
    }


def write(run: Path, summary: dict[str, Any]) -> None:
    """Make the run a finished one."""
    files.replace(run / NAME, json.dumps(summary, indent=2, allow_nan=False).encode())


def read(run: Path) -> dict[str, Any] | None:
    """The summary of a run that was finished; None without a sound one, since it can always be made again."""
    try:
        summary = json.loads((run / NAME).read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise RunError(f"Cannot read {run / NAME}: {files.reason(error)}.") from error
    return summary if isinstance(summary, dict) and isinstance(summary.get("rounds"), int) else None
