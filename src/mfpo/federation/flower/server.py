"""The server's side of a round over the network, as an engine: the training loop and the run directory are the usual.

A round ends when all agents have answered, or at its deadline with those that have, if they are enough; else it waits
on. Agents that did not answer are absent, as in every engine. Answers are checked before they are used; one that is
not as it must be is refused, counted and named; so is one of another round or run, and one that was sent before.
"""

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from mfpo.errors import ConfigError, MessageRefused, RunError
from mfpo.federation import round as federation_round
from mfpo.federation.faults import Attendance, check
from mfpo.federation.flower import wire
from mfpo.federation.flower.frames import Frame
from mfpo.federation.flower.orders import order_of
from mfpo.federation.flower.roster import Roster
from mfpo.federation.logs import RoundLog, StepLog, host_log
from mfpo.federation.round import Engine, Service, State
from mfpo.federation.sampling import make_server_sampler
from mfpo.runs.settings import Settings
from mfpo.types import Algorithm, Env, HostedEnv, PyTree

Notice = Callable[[str], object]


class Link(Protocol):
    """A way to the agents."""

    def exchange(self, question: Frame, wanted: Sequence[int]) -> Iterator[tuple[int, Frame] | None]:
        """Ask these agents; (agent, answer) as answers come, None where nothing came for a moment.

        Whoever reads it may stop at any time. It ends by itself only if no further answer can come.
        """


class Nobody:
    """A `Link` to no agent: for an engine that is made only to find out whether it can be."""

    def exchange(self, question: Frame, wanted: Sequence[int]) -> Iterator[tuple[int, Frame] | None]:
        """No answer, and none to come."""
        return iter(())


class Terms(NamedTuple):
    """What a run over the network needs to know beyond its settings."""

    run: str  # its id: no other run of these agents has it
    min_agents: int = 1  # a round goes on without the others
    round_timeout: float = 600.0  # seconds after which it does


def check_terms(terms: Terms, agents: int) -> None:
    """Raise a `ConfigError` where a round could not end as it should."""
    if not 1 <= terms.min_agents <= agents:
        raise ConfigError(f"--min-agents is {terms.min_agents}, but the run has {agents} agents; give 1 to that.")
    if not 1 <= terms.round_timeout < math.inf:  # nor NaN
        raise ConfigError(
            f"--round-timeout is {terms.round_timeout:g}, but it is a number of seconds, 1 or more; give more than the "
            "slowest agent takes for a round."
        )


class Answer(NamedTuple):
    """What one agent sent, checked."""

    upload: PyTree
    report: StepLog | None


def make(
    settings: Settings,
    config: Any,
    algorithm: Algorithm,
    env: Env,
    link: Link,
    terms: Terms,
    notice: Notice,
    roster: Roster,
) -> Engine:
    """The engine of a server whose agents are behind `link`. Its state holds no agents: theirs never leaves them."""
    check(settings.faults, settings.agents)
    check_terms(terms, settings.agents)
    key = jax.random.key(settings.seed)
    ask = _Asking(order_of(settings, config), algorithm, link, terms, notice, roster)
    serve = _program(algorithm, env)

    def round_(state: State, number: int) -> tuple[State, RoundLog]:
        planned = federation_round.attend(settings.faults, settings.agents, key, jnp.int32(number))
        asked = np.flatnonzero(np.asarray(planned.works)).tolist()
        answers, refused = ask(algorithm.download(state.server), number, asked)
        worked = np.isin(np.arange(settings.agents), list(answers))
        present = Attendance(worked, worked & np.asarray(planned.answers))  # type: ignore[arg-type]  # NumPy will do
        uploads = _rows([answers[i].upload if i in answers else None for i in range(settings.agents)])
        server, service_log = serve(state.server, uploads, jnp.asarray(present.answers), key, jnp.int32(number))
        federation_round.check_finite(server, f"round {number}")
        steps = federation_round.count_steps(algorithm, number)
        log = _pool(answers, settings.agents, steps, algorithm.plan.episodes)
        tells = np.isin(np.arange(settings.agents), [i for i, answer in answers.items() if answer.report is not None])
        whole = host_log(log, service_log, present, steps, settings.byzantine, tells)
        return State(server, ()), whole._replace(merge={**whole.merge, "refused": refused})

    def start() -> State:
        return State(jax.jit(functools.partial(federation_round.found, algorithm))(key), ())

    up, down = federation_round.message_bytes(algorithm)
    return Engine(1, up, down, start, round_)


def _program(algorithm: Algorithm, env: Env) -> Callable[..., Any]:
    """`serve`: as one program if the environment is pure, else in parts."""
    service, sampler = federation_round.make_service(algorithm), make_server_sampler(env, algorithm)
    if isinstance(env, HostedEnv):
        service, loop = Service(*[jax.jit(part) for part in service]), federation_round.host_loop("server")
        return functools.partial(federation_round.serve, service, sampler, loop)
    loop = federation_round.compiled_loop(algorithm.plan.server_steps)
    return jax.jit(functools.partial(federation_round.serve, service, sampler, loop))


class _Asking:
    """Asks agents and gathers their answers: (download, round, agents) -> answers by agent, number of refused ones."""

    def __init__(
        self, order: str, algorithm: Algorithm, link: Link, terms: Terms, notice: Notice, roster: Roster
    ) -> None:
        self._algorithm, self._link, self._terms, self._order = algorithm, link, terms, order
        self._notice, self._roster = notice, roster
        self._specification = wire.specify(algorithm)

    def __call__(self, download: PyTree, number: int, asked: list[int]) -> tuple[dict[int, Answer], int]:
        question = Frame(
            {**wire.known(), "run": self._terms.run, "round": number, "order": self._order},
            {"download": wire.entries_of(download)},
        )
        gathered = _Gathered()
        answers, unusable = gathered.answers, gathered.unusable
        needed, deadline = min(self._terms.min_agents, len(asked)), self._deadline()
        for news in self._link.exchange(question, asked):
            if news is not None and news[0] in asked:
                self._sort_in(news[0], news[1], number, gathered)
            if len(answers) + len(unusable) == len(asked) and len(answers) >= needed:
                break
            if len(unusable) > len(asked) - needed:
                first = next(iter(unusable.values()))
                raise RunError(
                    f"In round {number} the answers of {len(unusable)} of {len(asked)} agents cannot be used, and "
                    f"{needed} are needed: {first} Mend it, then go on with `mfpo federation submit DIR --run NAME`."
                )
            if time.monotonic() > deadline:
                if len(answers) >= needed:
                    break
                self._notice(f"round {number}: {len(answers)} of {needed} agents that are needed answered; waiting on.")
                deadline = self._deadline()
        if len(answers) < needed:
            raise RunError(f"In round {number} only {len(answers)} agents answered, and {needed} are needed.")
        self._name_missing(number, sorted(set(asked) - answers.keys() - unusable.keys()))
        return dict(sorted(answers.items())), gathered.refused

    def _deadline(self) -> float:
        return time.monotonic() + self._terms.round_timeout

    def _name_missing(self, number: int, missing: list[int]) -> None:
        for agent in missing:
            self._roster.note(agent, f"did not answer round {number} in time.")
        if missing:
            self._notice(f"round {number}: goes on without agent {', '.join(map(str, missing))}, which did not answer.")

    def _sort_in(self, agent: int, frame: Frame, number: int, gathered: "_Gathered") -> None:
        """Keep an answer or refuse it. After one of an earlier round the right one may still come."""
        try:
            wire.check_envelope(frame.envelope, self._terms.run, number, f"The answer of agent {agent}")
            if agent in gathered.answers:
                raise MessageRefused(f"Agent {agent} answered before in this round.")
        except MessageRefused as refusal:
            self._refuse(agent, number, f"{refusal} It is left out.", gathered)
            return
        try:
            gathered.answers[agent] = self._read(agent, frame, number)
            gathered.unusable.pop(agent, None)
            self._roster.accepted(agent, number)
        except MessageRefused as refusal:
            self._refuse(agent, number, str(refusal), gathered)
            gathered.unusable[agent] = refusal

    def _refuse(self, agent: int, number: int, sentence: str, gathered: "_Gathered") -> None:
        gathered.refused += 1
        self._notice(f"round {number}: {sentence}")
        self._roster.refused(agent, f"round {number}: {sentence}")

    def _read(self, agent: int, frame: Frame, number: int) -> Answer:
        what = f"The answer of agent {agent}"
        if "refused" in frame.envelope:
            raise MessageRefused(f"Agent {agent} does not take part: {str(frame.envelope['refused'])[:500]}")
        wire.check_version(frame.envelope, what)
        if frame.groups.keys() - {"upload", "report"}:
            raise MessageRefused(f"{what} holds more than an upload and a report.")
        upload = wire.tree_of(
            frame.groups.get("upload", {}), self._specification.upload, f"The upload of agent {agent}"
        )
        return Answer(upload, wire.report_of(frame.groups.get("report", {}), self._algorithm, number, what))


class _Gathered:
    """What has come of a round so far."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}
        self.unusable: dict[int, MessageRefused] = {}  # by agent: that was its answer
        self.refused = 0  # messages


def _rows(uploads: list[PyTree | None]) -> PyTree:
    """Uploads with a leading axis; zeros for those that did not come, which the mask leaves out."""
    known = next(upload for upload in uploads if upload is not None)
    blank = jax.tree.map(jnp.zeros_like, known)
    return jax.tree.map(lambda *x: jnp.stack(x), *[blank if upload is None else upload for upload in uploads])


def _pool(answers: dict[int, Answer], agents: int, steps: int, episodes: int) -> StepLog:
    """The log of all agents; NaN and zeros stand for one that did not answer, or keeps its report to itself.

    A metric counts if most reports have it.
    """
    reports = {i: answer.report for i, answer in answers.items() if answer.report is not None}
    every = [name for report in reports.values() for name in report.metrics]
    names = sorted(name for name in set(every) if 2 * every.count(name) > len(reports))
    returns = np.full((steps, agents, episodes), np.nan, np.float32)
    lengths = np.zeros((steps, agents, episodes), np.int32)
    metrics = {name: np.full((steps, agents), np.nan, np.float32) for name in names}
    for i, report in reports.items():
        returns[:, i], lengths[:, i] = np.asarray(report.returns)[:, 0], np.asarray(report.lengths)[:, 0]
        for name in names:
            if name in report.metrics:
                metrics[name][:, i] = np.asarray(report.metrics[name])[:, 0]
    log: Any = StepLog(returns, lengths, metrics)  # type: ignore[arg-type]  # on the host all along
    return log  # type: ignore[no-any-return]
