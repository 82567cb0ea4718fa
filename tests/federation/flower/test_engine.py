"""Agents behind messages and agents in one process give the same run; what goes wrong on the way is survived."""

import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("flwr")

from mfpo.errors import ConfigError, RunError
from mfpo.federation import RoundLog, State, make_engine, measured
from mfpo.federation.flower import frames, server, wire
from mfpo.federation.flower.frames import Entry, Frame
from mfpo.federation.flower.roster import Roster
from mfpo.federation.flower.server import Terms
from mfpo.runs import metrics
from mfpo.runs.building import make_algorithm, make_env
from mfpo.runs.checkpoint import Progress

_spec = importlib.util.spec_from_file_location("flower_helpers", Path(__file__).with_name("conftest.py"))
assert _spec is not None and _spec.loader is not None
helpers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(helpers)

pytestmark = pytest.mark.xdist_group("flower")  # one worker, so that every program is compiled once
ROUNDS = 3


def play(engine: Any, state: Any = None, first: int = 1, last: int = ROUNDS) -> tuple[State, list[RoundLog]]:
    state, logs = state or engine.start(), []
    for number in range(first, last + 1):
        state, log = engine.round(state, number)
        logs.append(log)
    return state, logs


def over_messages(job: Any, link: Any, notices: list[str] | None = None, **terms: Any) -> Any:
    settings, config = job
    env = make_env(settings)
    said: list[str] = [] if notices is None else notices
    algorithm = make_algorithm(settings, config, env)
    roster = terms.pop("roster", None) or Roster(Path("unwritten"), settings.agents)
    return server.make(settings, config, algorithm, env, link, Terms("test", **terms), said.append, roster)


def in_process(job: Any) -> Any:
    settings, config = job
    env = make_env(settings)
    algorithm = make_algorithm(settings, config, env)
    return make_engine("inprocess", algorithm, env, settings.agents, settings.seed, 1, settings.faults)


def agree(name: str, agents: list[Any], **options: Any) -> tuple[State, State]:
    job = helpers.job_of(name, **options)
    (state, logs), (reference, expected) = play(over_messages(job, helpers.Direct(agents))), play(in_process(job))
    for x, y in zip(jax.tree.leaves(state.server), jax.tree.leaves(reference.server), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=0, atol=1e-6)
    for log, wanted in zip(logs, expected, strict=True):
        assert log.merge.pop("refused") == 0 and log.answered == wanted.answered == 3
        np.testing.assert_array_equal(log.returns, wanted.returns)
        np.testing.assert_array_equal(log.lengths, wanted.lengths)
        assert log.learn.keys() == wanted.learn.keys() and log.merge.keys() == wanted.merge.keys()
        np.testing.assert_allclose(list(log.merge.values()), list(wanted.merge.values()), rtol=1e-5, atol=1e-6)
    return state, reference


def test_mfpo_is_the_same_bit_for_bit(make_agents: Callable[..., list[Any]]) -> None:
    one, other = agree("mfpo", make_agents(3))
    assert helpers.same_bits(one.server, other.server)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedpg_br", "fed_sac", "fed_dqn", "fedavg_ppo"])
def test_every_baseline_is_the_same(name: str, make_agents: Callable[..., list[Any]]) -> None:
    agree(name, make_agents(3))


@pytest.mark.slow
def test_the_gradient_a_server_measures_is_the_same(make_agents: Callable[..., list[Any]]) -> None:
    job = helpers.job_of("mfpo")
    env = make_env(job[0])
    algorithm = make_algorithm(*job, env)
    engines = over_messages(job, helpers.Direct(make_agents(3))), in_process(job)
    logs = [play(measured(engine, algorithm, env, 0, 2, 50), last=2)[1] for engine in engines]
    for name in ("gradient_error", "reference_gradient_norm_squared"):
        assert name not in logs[0][0].merge
        assert logs[0][1].merge[name] == pytest.approx(logs[1][1].merge[name], rel=1e-4)


@pytest.mark.slow
def test_a_hosted_environment_is_the_same_bit_for_bit(make_agents: Callable[..., list[Any]]) -> None:
    pytest.importorskip("gymnasium")
    one, other = agree("mfpo", make_agents(3), env="Acrobot-v1")
    assert helpers.same_bits(one.server, other.server)


@pytest.mark.slow
def test_mujoco_is_the_same_to_a_millionth(make_agents: Callable[..., list[Any]]) -> None:
    """One round: the policy's matrix products round differently in a block of one, and contacts amplify that."""
    pytest.importorskip("mujoco")
    job = helpers.job_of("mfpo", env="Hopper-v5")
    (state, (log,)) = play(over_messages(job, helpers.Direct(make_agents(3))), last=1)
    (reference, (expected,)) = play(in_process(job), last=1)
    for x, y in zip(jax.tree.leaves(state.server), jax.tree.leaves(reference.server), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(log.lengths, expected.lengths)
    np.testing.assert_allclose(log.returns, expected.returns, rtol=1e-5)


def test_only_upload_download_and_report_travel(make_agents: Callable[..., list[Any]]) -> None:
    job = helpers.job_of("mfpo")
    link = helpers.Direct(make_agents(3, report=False))
    engine = over_messages(job, link)
    _, logs = play(engine, last=2)
    assert len(link.seen) == 2 * 3 * 2
    for frame in link.seen:
        if "order" in frame.envelope:
            assert set(frame.envelope) == {"format", "version", "run", "round", "order"}
            assert set(frame.groups) == {"download"}
            assert wire.count_bytes(frame.groups["download"]) == engine.bytes_down
        else:
            assert set(frame.envelope) == {"format", "version", "agent", "run", "round"}
            assert wire.count_bytes(frame.groups["upload"]) == engine.bytes_up and frame.groups["report"] == {}
        overhead = len(frames.pack(frame)) - sum(map(wire.count_bytes, frame.groups.values()))
        assert overhead < 8000
    assert logs[0].returns.size == 0 and logs[0].worked == 3  # agents that keep their report to themselves do


def test_one_that_keeps_its_report_to_itself_spoils_no_mean(make_agents: Callable[..., list[Any]]) -> None:
    job = helpers.job_of("mfpo")

    def quietly(*quiet: int) -> list[RoundLog]:
        def spoil(agent: int, answer: Frame) -> list[Frame]:
            return [answer._replace(groups={**answer.groups, "report": {}}) if agent in quiet else answer]

        return play(over_messages(job, helpers.Direct(make_agents(3), spoil)), last=1)[1]

    whole, without, silent = quietly(), quietly(1), quietly(0, 1, 2)
    rows = [metrics.row_of(Progress(1, 0, 0, 0, 0, 0.0, 0.0), log, 0.0, 0.0) for (log,) in (whole, without)]
    np.testing.assert_array_equal(without[0].lengths, whole[0].lengths[:, [0, 2]])
    assert rows[1]["length_mean"] == pytest.approx(float(whole[0].lengths[:, [0, 2]].mean()))
    assert rows[1]["direction_norm"] == pytest.approx(float(whole[0].learn["direction_norm"][:, [0, 2]].mean()))
    assert (without[0].worked, without[0].answered) == (3, 3)
    row = metrics.row_of(Progress(1, 0, 0, 0, 0, 0.0, 0.0), silent[0], 0.0, 0.0)
    assert row["return_mean"] is None and row["length_mean"] is None and row["answered"] == 3


def nan(answer: Frame) -> Frame:
    upload = dict(answer.groups["upload"])
    name, entry = next((name, x) for name, x in upload.items() if x.dtype == "float32")
    upload[name] = Entry(entry.dtype, entry.shape, np.full(entry.shape, np.nan, np.float32).tobytes())
    return answer._replace(groups={**answer.groups, "upload": upload})


def resized(answer: Frame, shape: tuple[int, ...], size: int) -> Frame:
    upload = dict(answer.groups["upload"])
    name = next(name for name, x in upload.items() if x.dtype == "float32")
    upload[name] = Entry("float32", shape, bytes(size))
    return answer._replace(groups={**answer.groups, "upload": upload})


SPOILT: dict[str, Callable[[Frame], Frame]] = {
    "holds numbers in": nan,
    "as float32[999]": lambda answer: resized(answer, (999,), 3996),  # a wrong shape
    "in 4000000 bytes where": lambda answer: resized(  # more than it says
        answer, next(x.shape for x in answer.groups["upload"].values() if x.dtype == "float32"), 4_000_000
    ),
    "holds more than an upload and a report": lambda answer: answer._replace(groups={**answer.groups, "x": {}}),
    "of agent 1 has version 9.9 of mfpo": lambda answer: answer._replace(
        envelope={**answer.envelope, "version": "9.9"}
    ),
}


def test_a_bad_answer_is_refused_counted_and_named(make_agents: Callable[..., list[Any]], tmp_path: Path) -> None:
    """Agent 1 sends something else in every round, and the run goes on with the two others."""
    notices: list[str] = []
    roster = Roster(tmp_path / "agents.json", 3)
    ways = list(SPOILT.items())

    def spoil(i: int, answer: Frame) -> list[Frame]:
        return [ways[int(answer.envelope["round"]) - 1][1](answer) if i == 1 else answer]

    engine = over_messages(
        helpers.job_of("mfpo", rounds=len(ways)), helpers.Direct(make_agents(3), spoil), notices, roster=roster
    )
    state, logs = play(engine, last=len(ways))
    for number, ((sentence, _), log) in enumerate(zip(ways, logs, strict=True), 1):
        assert log.answered == 2 and log.merge["refused"] == 1 and log.returns.shape[1] == 2
        named = [notice for notice in notices if notice.startswith(f"round {number}: ")]
        assert len(named) == 1 and "agent 1" in named[0] and sentence in named[0]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.server))
    roster.write()
    lines = json.loads((tmp_path / "agents.json").read_text())["agents"]
    assert [line["refused"] for line in lines] == [0, 5, 0] and [line["round"] for line in lines] == [5, 0, 5]
    again = Roster(tmp_path / "agents.json", 3)  # a server that was killed counts on
    again.refused(1, "once more.")
    again.write()
    line = {"number": 1, "last_seen": None, "round": 0, "refused": 6, "note": "once more."}
    assert json.loads((tmp_path / "agents.json").read_text())["agents"][1] == line


def test_late_and_foreign_answers_are_left_out(make_agents: Callable[..., list[Any]]) -> None:
    notices: list[str] = []

    def late(i: int, answer: Frame) -> list[Frame]:
        old = answer._replace(envelope={**answer.envelope, "round": 0})
        foreign = answer._replace(envelope={**answer.envelope, "run": "another"})
        return [nan(old), nan(foreign), answer, nan(answer)]  # the last is sent in its name, after its own

    job = helpers.job_of("mfpo")
    disturbed = play(over_messages(job, helpers.Direct(make_agents(3), late), notices), last=1)
    undisturbed = play(over_messages(job, helpers.Direct(make_agents(3))), last=1)
    assert helpers.same_bits(disturbed[0], undisturbed[0])
    assert sum("is of round 0" in notice for notice in notices) == 3
    assert sum("belongs to another run" in notice for notice in notices) == 3
    assert sum("answered before in this round" in notice for notice in notices) == 2  # the round is over at the third
    assert disturbed[1][0].merge["refused"] == 8 and undisturbed[1][0].merge["refused"] == 0


class Deaf(helpers.Direct):  # type: ignore[misc]
    """Agent 2 is asked and never answers; the others do."""

    def exchange(self, question: Any, wanted: Any) -> Any:
        yield from super().exchange(question, [i for i in wanted if i != 2])
        for _ in range(10**4):
            time.sleep(0.01)
            yield None


def test_a_round_goes_on_without_an_agent_that_does_not_answer(make_agents: Callable[..., list[Any]]) -> None:
    notices: list[str] = []
    engine = over_messages(helpers.job_of("mfpo"), Deaf(make_agents(3)), notices, min_agents=2, round_timeout=1.0)
    _, (log,) = play(engine, last=1)
    assert log.answered == 2 and log.lengths.shape[1] == 2
    assert notices[-1:] == ["round 1: goes on without agent 2, which did not answer."]


def test_too_few_usable_answers_end_the_run(make_agents: Callable[..., list[Any]]) -> None:
    link = helpers.Direct(make_agents(3), lambda i, answer: [nan(answer)])
    with pytest.raises(RunError, match="agents cannot be used, and 2 are needed: The upload of agent 0"):
        play(over_messages(helpers.job_of("mfpo"), link, min_agents=2), last=1)


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [
        ({"min_agents": 4}, "--min-agents is 4, but the run has 3 agents"),
        ({"round_timeout": 0.5}, "--round-timeout is 0.5, but it is a number of seconds, 1 or more"),
    ],
)
def test_terms_that_cannot_be_kept_are_refused(terms: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        over_messages(helpers.job_of("mfpo"), helpers.Direct([]), **terms)


def test_killed_agents_and_a_killed_server_go_on_as_if_nothing_had_happened(
    make_agents: Callable[..., list[Any]], tmp_path: Path
) -> None:
    job = helpers.job_of("mfpo")
    whole, _ = play(in_process(job))
    state, _ = play(over_messages(job, helpers.Direct(make_agents(3))), last=1)
    saved = jax.tree.map(np.asarray, state)
    play(over_messages(job, helpers.Direct(make_agents(3))), state, 2, 2)  # the server is killed before it stores this
    link = helpers.Direct(make_agents(3))  # and so are the agents
    worked: list[int] = []
    for agent in link.agents:
        agent._remember = lambda memory, keep=agent._remember: (worked.append(memory.round), keep(memory))
    again, _ = play(over_messages(job, link), jax.tree.map(jax.numpy.asarray, saved), 2, 3)
    assert helpers.same_bits(again.server, whole.server)
    assert worked == [3, 3, 3]  # round 2 was answered from memory
    kept = sorted(path.name for path in (tmp_path / "agents" / "00" / "runs" / "test").iterdir())
    assert kept == ["round-000002.safetensors", "round-000003.safetensors"]
