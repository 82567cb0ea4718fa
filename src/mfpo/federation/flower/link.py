"""The way to the agents through Flower: questions out to its nodes, answers in as they come.

A node says which agent it is when it is first seen; where the server knows the keys of its agents, Flower has checked
who it is, and it cannot say otherwise.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from mfpo.errors import MessageRefused
from mfpo.federation.flower import wire
from mfpo.federation.flower.frames import Frame
from mfpo.federation.flower.roster import Roster

POLL = 0.2  # seconds between two looks for answers
ROLL_CALL = 2.0  # seconds between two looks for nodes
AGAIN = 5.0  # seconds until an agent that failed is asked again,
REPENT = 30.0  # and until a node that was left out may say anew who it is

Notice = Callable[[str], object]


class GridLink:
    """A `server.Link` over Flower's grid."""

    def __init__(
        self,
        grid: Grid,
        agents: int,
        timeout: float,
        notice: Notice,
        roster: Roster,
        known: Mapping[int, int] | None = None,  # node -> agent, as far as their keys tell
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._grid, self._agents, self._timeout, self._notice, self._sleep = grid, agents, timeout, notice, sleep
        self._roster, self._known = roster, known or {}
        self._homes: dict[int, int] = {}  # agent -> node
        self._introducing: dict[str, int] = {}  # message -> node that was asked who it is
        self._greeted: dict[int, float] = {}  # node -> when to ask it again who it is
        self._left_out: dict[int, str] = {}  # node -> why
        self._hello = Frame({**wire.known(), "kind": "hello"}, {})
        self._looked = 0.0

    def exchange(self, question: Frame, wanted: Sequence[int]) -> Iterator[tuple[int, Frame] | None]:
        """See `server.Link`. Agents that come while a round is running take part in it."""
        open_: dict[str, int] = {}  # message -> agent
        due = dict.fromkeys(wanted, 0.0)  # agent -> when to ask it
        while True:
            self._call_roll()
            now = time.monotonic()
            for agent in [agent for agent, when in due.items() if when <= now and agent in self._homes]:
                for identifier in self._push(question, MessageType.TRAIN, [self._homes[agent]]):
                    open_[identifier] = agent
                    del due[agent]
            answers = list(self._pull(open_))
            for message in answers:
                agent = open_.pop(message.metadata.reply_to_message_id)
                answer = self._read(message, f"The answer of agent {agent}", question)
                if answer is None:
                    due[agent] = time.monotonic() + AGAIN
                else:
                    yield agent, answer
            if not answers:
                yield None
                self._sleep(POLL)

    def _push(self, frame: Frame, kind: str, nodes: Iterable[int]) -> list[str]:
        messages = [Message(wire.to_records(frame), node, kind, ttl=self._timeout) for node in nodes]
        return [identifier for identifier in self._grid.push_messages(messages) if identifier]

    def _pull(self, identifiers: Iterable[str]) -> Iterable[Message]:
        asked = list(identifiers)
        return self._grid.pull_messages(asked) if asked else []

    def _read(self, message: Message, what: str, question: Frame) -> Frame | None:
        if message.has_error():
            self._notice(f"{what} is an error: {message.error.reason or 'the node is gone'}; it is asked again.")
            return None
        try:
            return wire.from_records(message.content)
        except MessageRefused as refusal:
            said = {name: x for name, x in question.envelope.items() if name in ("run", "round")}
            return Frame({**said, "refused": str(refusal)}, {})

    def _call_roll(self) -> None:
        """Ask nodes that are new who they are, and hear what they say."""
        if time.monotonic() - self._looked > ROLL_CALL:
            self._looked = time.monotonic()
            present = set(self._grid.get_node_ids())
            self._homes = {agent: node for agent, node in self._homes.items() if node in present}
            self._left_out = {node: why for node, why in self._left_out.items() if node in present}
            self._greeted = {node: when for node, when in self._greeted.items() if node in present}
            for node in [node for node in present if self._greeted.get(node, 0.0) <= self._looked]:
                self._greeted[node] = math.inf
                self._introducing |= dict.fromkeys(self._push(self._hello, MessageType.QUERY, [node]), node)
        for message in self._pull(self._introducing):
            node = self._introducing.pop(message.metadata.reply_to_message_id)
            answer = self._read(message, f"The greeting of node {node}", self._hello)
            if answer is None:
                self._greeted.pop(node, None)
            else:
                self._welcome(node, answer)

    def _welcome(self, node: int, answer: Frame) -> None:
        agent = answer.envelope.get("agent")
        if type(agent) is not int or not 0 <= agent < self._agents:
            self._leave_out(node, f"Node {node} says it is agent {str(agent)[:20]}, but there are {self._agents}.")
            return
        reason = self._objection(node, agent, answer)
        if reason:
            if self._leave_out(node, reason):
                self._roster.refused(agent, reason)
            return
        self._left_out.pop(node, None)
        self._homes[agent] = node
        self._roster.note(agent, "is there.")
        self._notice(f"agent {agent} is there.")

    def _leave_out(self, node: int, reason: str) -> bool:
        """For a while: who stands in its way may go. Whether that is news."""
        self._greeted[node] = time.monotonic() + REPENT
        if self._left_out.get(node) == reason:
            return False
        self._left_out[node] = reason
        self._notice(f"{reason} It is left out.")
        return True

    def _objection(self, node: int, agent: int, answer: Frame) -> str:
        """Why a node cannot be this agent; nothing if it can."""
        if self._known.get(node, agent) != agent or (self._known and node not in self._known):
            return f"Node {node} says it is agent {agent}, but its key is another's."
        if self._homes.get(agent, node) != node:
            return (
                f"Two nodes say they are agent {agent}; the second has a copied folder. Copy a folder to one machine."
            )
        try:
            wire.check_version(answer.envelope, f"The greeting of agent {agent}")
        except MessageRefused as refusal:
            return str(refusal)
        return ""
