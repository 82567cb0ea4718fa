"""A block of copies of a hosted environment, and the tape that records what happens in it."""

import weakref
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mfpo.errors import CopyFailed, StepFailed
from mfpo.types import Copies, HostedEnv, Trajectories

Flags = NDArray[np.bool_]  # [agents, columns], like everything here that is said of episodes


def _flat(x: NDArray[Any]) -> NDArray[Any]:
    """[agents, columns, ...] as [copies, ...], to look at or to write to."""
    return x.reshape(-1, *x.shape[2:])


def _chosen(mask: Flags) -> Flags | slice:
    """An index of [copies, ...]; where all are chosen, one that copies nothing."""
    return slice(None) if mask.all() else mask.ravel()


class Block:
    """The copies of some agents, a row for each agent, and where the episode in each of them stands."""

    def __init__(self, env: HostedEnv, copies: Copies, ids: tuple[int, ...], columns: int) -> None:
        self.spec, self.copies, self._ids = env.spec, copies, ids
        self.close = weakref.finalize(self, copies.close)  # nobody may need it before this block itself goes
        self._where = np.arange(len(ids) * columns).reshape(-1, columns)
        self.elapsed = np.zeros(self._where.shape, np.int32)  # steps of the running episodes
        self._total = np.zeros(self._where.shape)  # and what they were worth
        self.shown: list[NDArray[Any]] = []  # [agents, columns, ...] observations, or their frames, oldest first

    @property
    def now(self) -> NDArray[Any]:
        """The observations [agents, columns, ...], until the next step."""
        return np.stack(self.shown, axis=2) if self.spec.stack else self.shown[0]

    def newest(self) -> NDArray[Any]:
        """What has to be kept of the observations, until the next step: of frames that are stacked, the newest."""
        return self.shown[-1]

    def reset(self, mask: Flags, seeds: NDArray[np.uint64] | None = None) -> None:
        """Begin an episode in the columns of the mask."""
        if not mask.any():
            return
        chosen = _chosen(mask)
        try:
            shown = self.copies.reset(_flat(self._where)[chosen], None if seeds is None else _flat(seeds)[chosen])
        except CopyFailed as failure:
            raise self.failed(failure.copy, str(failure), "reset") from failure
        if not self.shown:
            self.shown = [np.zeros((*mask.shape, *shown.shape[1:]), shown.dtype) for _ in range(self.spec.stack or 1)]
        for frame in self.shown:
            frame[mask] = 0
        self._show(chosen, shown)
        self.elapsed[mask], self._total[mask] = 0, 0.0
        self._check(mask, self.newest(), "reset", "an observation")

    def step(self, mask: Flags, action: NDArray[Any]) -> tuple[NDArray[np.float32], Flags, Flags, NDArray[np.float64]]:
        """One step in the columns of the mask: reward, terminated, truncated; nothing in the others.

        And the score of every game that ended with it, NaN elsewhere.
        """
        reward, terminated, truncated = np.zeros(mask.shape, np.float32), np.zeros_like(mask), np.zeros_like(mask)
        score = np.full(mask.shape, np.nan)
        if not mask.any():
            return reward, terminated, truncated, score
        chosen = _chosen(mask)
        try:
            outcome = self.copies.step(_flat(self._where)[chosen], _flat(action)[chosen])
        except CopyFailed as failure:
            raise self.failed(failure.copy, str(failure), "step") from failure
        self._show(chosen, outcome.shown)
        _flat(reward)[chosen], _flat(terminated)[chosen] = outcome.reward, outcome.terminated
        _flat(truncated)[chosen] = outcome.truncated
        self._check(mask, self.newest(), "step", "an observation")
        self._check(mask, reward, "step", "a reward")
        self.elapsed += mask
        self._total += reward
        truncated = (truncated | mask & (self.elapsed >= self.spec.horizon)) & ~terminated
        if outcome.score is None:
            score = np.where(terminated | truncated, self._total, np.nan)
        else:
            _flat(score)[chosen] = outcome.score
        return reward, terminated, truncated, score

    def room_for(self, steps: int) -> bool:
        """Whether no episode can reach the horizon in so many steps."""
        return bool(self.elapsed.max() + steps < self.spec.horizon)

    def go_on(self, shown: Sequence[NDArray[Any]], elapsed: NDArray[np.int32]) -> None:
        """A program has stepped the copies, and left them like this."""
        self.shown, self.elapsed = [np.array(frame) for frame in shown], np.array(elapsed)

    def failed(self, copy: int, reason: str, call: str) -> StepFailed:
        """What to raise."""
        row, column = np.argwhere(self._where == copy)[0]
        when = f"step {self.elapsed[row, column] + 1} of its episode" if call == "step" else "reset"
        return StepFailed(f"The environment {self.spec.id} of agent {self._ids[row]} failed in {when}: {reason}")

    def _show(self, chosen: Flags | slice, shown: NDArray[Any]) -> None:
        if isinstance(chosen, slice):  # all of them: the oldest frames make room for the newest
            self.shown.append(self.shown.pop(0))
        else:
            for older, newer in pairwise(self.shown):
                _flat(older)[chosen] = _flat(newer)[chosen]
        _flat(self.shown[-1])[chosen] = shown

    def _check(self, mask: Flags, values: NDArray[Any], call: str, what: str) -> None:
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            bad = mask & ~np.isfinite(values.reshape(*mask.shape, -1)).all(axis=-1)
            if bad.any():
                raise self.failed(self._where[bad][0], f"it gave {what} that is not finite in 32 bits", call)


class Tape:
    """Records what happens in a block of columns."""

    def __init__(self, block: Block, slots: int) -> None:
        self._block, self._slots, self._record = block, slots, list[NDArray[Any]]()
        self._games, self._scores = np.zeros(block.elapsed.shape), np.zeros(block.elapsed.shape)
        newest, earlier = block.newest(), max(block.spec.stack - 1, 0)
        self._obs = np.zeros((len(newest), earlier + slots, *newest.shape[1:]), newest.dtype)
        if earlier:
            self._obs[:, :earlier] = np.moveaxis(block.now[:, :, :-1], 2, 1)
        self._seen = self._obs[:, earlier:]

    def see(self, h: int) -> None:
        """The observation of one slot, which is the block's before it steps."""
        self._seen[:, h] = self._block.newest()

    def write(self, h: int, *values: NDArray[Any]) -> None:
        """The other values of one slot: aux, reward, live, terminated, truncated."""
        if not self._record:
            self._record = [np.zeros((len(x), self._slots, *x.shape[1:]), x.dtype) for x in values]
        for record, x in zip(self._record, values, strict=True):
            record[:, h] = x

    def count(self, score: NDArray[np.float64]) -> None:
        """The scores of games that ended; NaN for the others."""
        over = ~np.isnan(score)
        if over.any():
            self._games += over
            self._scores[over] += score[over]

    def finish(self, last_obs: NDArray[Any], all_in_use: bool = False) -> Trajectories:
        """All of it, as one batch for every agent. In a segment all slots are in use, also those that are not live."""
        live = self._record[2]
        length = (live.any(axis=2) | all_in_use).sum(axis=1).astype(np.int32)
        with np.errstate(invalid="ignore", over="ignore"):
            score = (self._scores / self._games).astype(np.float32)  # NaN where no game ended
        batch: Any = (self._obs, *self._record, last_obs.copy(), length, score)
        return Trajectories(*batch)
