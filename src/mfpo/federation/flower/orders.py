"""What a run is, in words that a question carries: settings and algorithm config, checked like those of a file."""

import json
from typing import Any

from mfpo import algorithms
from mfpo.config import as_dict, build
from mfpo.errors import MessageRefused
from mfpo.runs.settings import Settings


def order_of(settings: Settings, config: Any) -> str:
    """The settings of a run, as a question carries them."""
    return json.dumps({"run": as_dict(settings), "algorithm": as_dict(config)})


def read_order(order: Any) -> tuple[Settings, Any]:
    """Settings and config of a run, checked as those of a file are."""
    try:
        document = json.loads(str(order))
        settings = build(Settings, document["run"], "The run that was asked for")
        config_class = algorithms.config_class(settings.algorithm)
        return settings, build(config_class, document["algorithm"], f"The algorithm {settings.algorithm} of the run")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MessageRefused(f"The question does not say what run it belongs to ({error}).") from error
