"""A small federation without a network: the messages are packed and unpacked, and a link may lose or spoil them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

NETS = {"hidden": (4,), "horizon": 50}
SMALL: dict[str, dict[str, Any]] = {
    "mfpo": {"env": "CartPole-v1", **NETS, "local_steps": 2, "trajectories": 3},
    "fedpg_br": {"env": "CartPole-v1", **NETS, "trajectories": 4, "server_trajectories": 2, "server_steps": 3},
    "fedavg_ppo": {"env": "CartPole-v1", **NETS},
    "fed_dqn": {"env": "CartPole-v1", **NETS, "local_steps": 2},
    "fed_sac": {"env": "Pendulum-v1", **NETS, "local_steps": 3},
}


class Direct:
    """A link to agents in this process. `spoil` may change an answer, lose it (None) or send others before it."""

    def __init__(self, agents: Sequence[Any], spoil: Callable[[int, Any], list[Any]] | None = None) -> None:
        self.agents, self.spoil = agents, spoil or (lambda agent, answer: [answer])
        self.seen: list[Any] = []

    def exchange(self, question: Any, wanted: Sequence[int]) -> Iterator[Any]:
        from mfpo.federation.flower import frames

        for i in wanted:
            answer = self.agents[i].answer(frames.unpack(frames.pack(question)))
            for spoilt in self.spoil(i, answer):
                self.seen += [question, spoilt]
                yield i, frames.unpack(frames.pack(spoilt))
            yield None


@pytest.fixture
def make_agents(tmp_path: Path) -> Callable[..., list[Any]]:
    """Fresh processes' worth of agents over the same folders each time it is called."""
    from mfpo.federation.flower.agent import Agent

    def make(count: int, notices: list[str] | None = None, **options: Any) -> list[Any]:
        said: list[str] = [] if notices is None else notices
        folders = [tmp_path / "agents" / f"{i:02d}" for i in range(count)]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        return [Agent(folder, i, said.append, **options) for i, folder in enumerate(folders)]

    return make


def job_of(name: str, **options: Any) -> tuple[Any, Any]:
    """Settings and config of a small run."""
    from mfpo.runs.settings import resolve_options

    return resolve_options(
        {"algorithm": name, "agents": 3, "rounds": 3, "seed": 5, "evaluation_episodes": 4, **SMALL[name], **options}
    )


def same_bits(one: Any, other: Any) -> bool:
    """Whether two trees hold the same numbers, bit for bit."""
    import jax
    import numpy as np

    x, y = ([np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)] for tree in (one, other))
    return x == y
