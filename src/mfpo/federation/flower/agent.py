"""The warm agent: a long-lived process that owns the environment, the compiled functions and the private state.

It answers over a socket in its folder that only its user can open. After every round its state, and what it answered,
is on the disk before the answer is sent. So it goes on from there after a kill, and the same question gets the same
answer: a server that was killed asks again, and no agent learns a round twice.

    FOLDER/agent.sock                          where it listens
    FOLDER/runs/RUN/round-000003.safetensors   its last two states in a run
"""

import contextlib
import hashlib
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from mfpo.errors import MessageRefused, MfpoError
from mfpo.federation.flower import frames, wire
from mfpo.federation.flower.frames import Entries, Entry, Frame, Value
from mfpo.federation.flower.learner import Learner, make_learner
from mfpo.federation.flower.orders import read_order
from mfpo.runs import directory, files, tensors
from mfpo.runs.checkpoint import NAME, path_of
from mfpo.types import PyTree

SOCKET = "agent.sock"
GROUPS = ("upload", "report")
Notice = Callable[[str], object]


class Memory(NamedTuple):
    """An agent after a round, and what it answered."""

    round: int
    question: str  # digest of the download it was asked with
    agent: PyTree
    groups: dict[str, Entries]  # upload and report


class Agent:
    """Agent `number` of a federation, for one run after the other."""

    def __init__(
        self,
        folder: Path,
        number: int,
        notice: Notice,
        report: bool = True,
        environments: tuple[str, ...] = (),
    ) -> None:
        self.folder, self.number, self._notice, self._report = folder, number, notice, report
        self._environments = environments  # that may be imported from packages of the machine
        self._run = ""
        self._learner: Learner | None = None
        self._memories: list[Memory] = []  # the newest last

    def answer(self, question: Frame) -> Frame:
        """What to send back; if that is not possible, the reason."""
        said = question.envelope
        known = {**wire.known(), "agent": self.number}
        if said.get("kind") == "hello":
            self._greet(said)
            return Frame(known, {})
        known |= {name: value for name, value in said.items() if name in ("run", "round")}
        try:
            return Frame(known, self._work(question))
        except MfpoError as error:
            self._notice(str(error))
            return Frame({**known, "refused": " ".join(str(error).split())}, {})

    def _greet(self, said: dict[str, Value]) -> None:
        try:
            wire.check_version(said, "The greeting of the server")
            self._notice("the server is there.")
        except MessageRefused as refusal:
            self._notice(str(refusal))

    def _work(self, question: Frame) -> dict[str, Entries]:
        run, number = question.envelope.get("run"), question.envelope.get("round")
        if not isinstance(run, str) or not re.fullmatch(r"[\w-]{1,100}", run):
            raise MessageRefused(f"The question names the run {str(run)[:100]!r}; it must be letters, digits and '-'.")
        if type(number) is not int or number < 1:
            raise MessageRefused(f"The question is of round {str(number)[:20]}; rounds count from 1.")
        wire.check_version(question.envelope, "The question")
        learner = self._enter(run, question.envelope)
        asked = question.groups.get("download", {})
        specification = wire.specify(learner.algorithm)
        download = wire.tree_of(asked, specification.download, f"The download of round {number}")
        digest = _digest(asked)
        for memory in self._memories:
            if (memory.round, memory.question) == (number, digest):
                return memory.groups
        agent, upload, log = learner.round(self._before(number), download, number)
        groups = {"upload": wire.entries_of(upload), "report": wire.entries_of(log) if self._report else {}}
        self._remember(Memory(number, digest, agent, groups))
        return groups

    def _enter(self, run: str, said: dict[str, Value]) -> Learner:
        """The learner of a run, made once, with what the disk remembers of it."""
        if self._learner is None or run != self._run:
            settings, config = read_order(said.get("order"))
            if ":" in settings.env and settings.env not in self._environments:
                raise MessageRefused(
                    f"The run wants the environment {settings.env}, which is a package of this machine; to allow it, "
                    f"add it to `environments` in {self.folder / 'agent.toml'}."
                )
            if self.number >= settings.agents:
                raise MessageRefused(f"The run has agents 0 to {settings.agents - 1}; this is agent {self.number}.")
            learner = make_learner(settings, config, self.number)
            memories = _recall(self._place(run), learner, self._notice)
            self._run, self._learner, self._memories = run, learner, memories
        return self._learner

    def _before(self, number: int) -> PyTree:
        """This agent as it was before a round; usually as it is."""
        assert self._learner is not None
        earlier = [memory.agent for memory in self._memories if memory.round < number]
        if earlier:
            return earlier[-1]
        if len(self._memories) > 1:  # there may have been others; a single one is the first
            raise MessageRefused(
                f"The question is of round {number}, but agent {self.number} remembers only rounds from "
                f"{self._memories[0].round} on; start a new run."
            )
        return self._learner.start()

    def _remember(self, memory: Memory) -> None:
        """On the disk first; of earlier rounds one is kept."""
        place = self._place(self._run)
        kept = [old for old in self._memories if old.round < memory.round][-1:]
        note = {"round": memory.round, "question": memory.question}
        sent = {group: {name: _array(x) for name, x in entries.items()} for group, entries in memory.groups.items()}
        with files.writing(f"the state of agent {self.number}", place):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.replace(path_of(place, memory.round), *tensors.pack({"agent": memory.agent, **sent}, note))
            for path in place.glob("round-*.safetensors"):
                if path not in [path_of(place, old.round) for old in (*kept, memory)]:
                    path.unlink(missing_ok=True)
        self._memories = [*kept, memory]

    def _place(self, run: str) -> Path:
        return self.folder / "runs" / run


def _recall(place: Path, learner: Learner, notice: Notice) -> list[Memory]:
    """What the disk remembers of a run, the newest last; damaged files are left out with a notice."""
    template = jax.eval_shape(learner.start)
    memories = []
    try:
        files.remove_temporary(place)
    except OSError as error:
        notice(f"What a kill left in {place} cannot be removed ({files.reason(error)}); it does no harm.")
    for path in sorted(path for path in place.glob("round-*.safetensors") if NAME.fullmatch(path.name)):
        try:
            named, note = tensors.unpack(path.read_bytes())
            agent = tensors.fill(template, _below(named, "agent"))
            groups = {group: wire.entries_of_named(_below(named, group)) for group in GROUPS}
            memories.append(Memory(note["round"], note["question"], agent, groups))
        except (tensors.Damaged, tensors.Mismatch) as error:
            notice(f"The state {path} {error}; it is left out.")
        except OSError as error:
            notice(f"The state {path} cannot be read ({files.reason(error)}); it is left out.")
    return memories


def _below(named: dict[str, np.ndarray], group: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(f"{group}/"): x for name, x in named.items() if name.startswith(f"{group}/")}


def _array(entry: Entry) -> np.ndarray:
    return np.frombuffer(entry.data, entry.dtype).reshape(entry.shape)


def _digest(entries: Entries) -> str:
    digest = hashlib.sha256()
    for name in sorted(entries):
        digest.update(f"{name}\n".encode())
        digest.update(entries[name].data)
    return digest.hexdigest()


def listen(agent: Agent, stop: Callable[[], bool] = lambda: False) -> None:
    """Answer one question after the other, until `stop` says so (it is asked once a second)."""
    path = agent.folder / SOCKET
    with contextlib.ExitStack() as stack:
        stack.enter_context(directory.locked(agent.folder))
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        path.unlink(missing_ok=True)
        with frames.short_path(path) as name:
            listener.bind(name)
        path.chmod(0o600)  # nobody can connect before `listen`
        stack.callback(path.unlink, missing_ok=True)
        listener.listen()
        listener.settimeout(1.0)
        while not stop():
            with contextlib.suppress(TimeoutError):
                _attend_to(agent, listener.accept()[0])


def _attend_to(agent: Agent, connection: socket.socket) -> None:
    """One question. Whoever asked may be gone by the time of the answer; it is kept for when they ask again."""
    with connection:
        connection.settimeout(60.0)
        try:
            frames.send(connection, agent.answer(frames.receive(connection)))
        except ValueError as error:
            agent._notice(f"What came over {SOCKET} is not a message: {error}.")
        except OSError as error:
            agent._notice(f"Whoever asked is gone ({files.reason(error)}); the answer is kept.")
