"""The server's side of a round over the network, as an engine: the training loop and the run directory are the usual.

A round ends when all agents have answered, or at its deadline with those that have, if they are enough; else it waits
on. Agents that did not answer are absent, as in every engine. Answers are checked before they are used; one that is
not as it must be is refused, counted and named.
"""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from mfpo.errors import ConfigError, Diverged, MessageRefused
from mfpo.federation import round as federation_round
from mfpo.federation.faults import Attendance, check
from mfpo.federation.flower import wire
from mfpo.federation.flower.frames import Frame
from mfpo.federation.flower.orders import order_of
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


class Terms(NamedTuple):
    """What a run over the network needs to know beyond its settings."""

    run: str  # its id: no other run of these agents has it
    min_agents: int = 1  # a round goes on without the others
    round_timeout: float = 600.0  # seconds after which it does


class Answer(NamedTuple):
    """What one agent sent, checked."""

    upload: PyTree
    report: StepLog | None


def make(
    settings: Settings, config: Any, algorithm: Algorithm, env: Env, link: Link, terms: Terms, notice: Notice
) -> Engine:
    """The engine of a server whose agents are behind `link`. Its state holds no agents: theirs never leaves them."""
    check(settings.faults, settings.agents)
    if not 1 <= terms.min_agents <= settings.agents:
        raise ConfigError(
            f"--min-agents is {terms.min_agents}, but the run has {settings.agents} agents; give 1 to that."
        )
    key = jax.random.key(settings.seed)
    ask = _Asking(settings, config, algorithm, link, terms, notice)
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
        whole = host_log(log, service_log, present, steps, settings.byzantine)
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
        self, settings: Settings, config: Any, algorithm: Algorithm, link: Link, terms: Terms, notice: Notice
    ) -> None:
        self._algorithm, self._link, self._terms, self._notice = algorithm, link, terms, notice
        self._specification = wire.specify(algorithm)
        self._order = order_of(settings, config)

    def __call__(self, download: PyTree, number: int, asked: list[int]) -> tuple[dict[int, Answer], int]:
        question = Frame(
            {"format": wire.FORMAT, "run": self._terms.run, "round": number, "order": self._order},
            {"download": wire.entries_of(download)},
        )
        answers: dict[int, Answer] = {}
        refused: dict[int, MessageRefused] = {}
        needed, deadline = min(self._terms.min_agents, len(asked)), self._deadline()
        for news in self._link.exchange(question, asked):
            if news is not None and news[0] in asked and news[0] not in answers:
                self._judge(news[0], news[1], number, answers, refused)
            if len(answers) + len(refused) == len(asked) and len(answers) >= needed:
                break
            if len(refused) > len(asked) - needed:
                first = next(iter(refused.values()))
                raise Diverged(
                    f"In round {number} the answers of {len(refused)} of {len(asked)} agents cannot be used, and "
                    f"{needed} are needed: {first}"
                )
            if time.monotonic() > deadline:
                if len(answers) >= needed:
                    break
                self._notice(f"round {number}: {len(answers)} of {needed} agents that are needed answered; waiting on.")
                deadline = self._deadline()
        if len(answers) < needed:
            raise Diverged(f"In round {number} only {len(answers)} agents answered, and {needed} are needed.")
        missing = sorted(set(asked) - answers.keys() - refused.keys())
        if missing:
            self._notice(f"round {number}: goes on without agent {', '.join(map(str, missing))}, which did not answer.")
        return dict(sorted(answers.items())), len(refused)

    def _deadline(self) -> float:
        return time.monotonic() + self._terms.round_timeout

    def _judge(
        self,
        agent: int,
        frame: Frame,
        number: int,
        answers: dict[int, Answer],
        refused: dict[int, MessageRefused],
    ) -> None:
        """Sort an answer in. One of an earlier round is only mentioned: the right one may still come."""
        what = f"The answer of agent {agent}"
        try:
            wire.check_envelope(frame.envelope, self._terms.run, number, what)
        except MessageRefused as refusal:
            self._notice(f"round {number}: {refusal} It is left out.")
            return
        try:
            if "refused" in frame.envelope:
                raise MessageRefused(f"Agent {agent} does not take part: {str(frame.envelope['refused'])[:500]}")
            if frame.groups.keys() - {"upload", "report"}:
                raise MessageRefused(f"{what} holds more than an upload and a report.")
            upload = wire.tree_of(
                frame.groups.get("upload", {}), self._specification.upload, f"The upload of agent {agent}"
            )
            report = wire.report_of(frame.groups.get("report", {}), self._algorithm, number, what)
            answers[agent] = Answer(upload, report)
            refused.pop(agent, None)
        except MessageRefused as refusal:
            self._notice(f"round {number}: {refusal}")
            refused[agent] = refusal


def _rows(uploads: list[PyTree | None]) -> PyTree:
    """Uploads with a leading axis; zeros for those that did not come, which the mask leaves out."""
    known = next(upload for upload in uploads if upload is not None)
    blank = jax.tree.map(jnp.zeros_like, known)
    return jax.tree.map(lambda *x: jnp.stack(x), *[blank if upload is None else upload for upload in uploads])


def _pool(answers: dict[int, Answer], agents: int, steps: int, episodes: int) -> StepLog:
    """The log of all agents; nothing is known of one that did not answer, or keeps its report to itself.

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
