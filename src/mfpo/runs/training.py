"""Train, resume, evaluate: what a user does with a run.

Each round is stored before the next begins: first its line in metrics.jsonl, then its checkpoint. In this order a
checkpoint never lacks the line of its round; a line without its checkpoint is cut when the run is resumed, and written
again by the same round, computed again from the same numbers.
"""

import dataclasses
import inspect
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from mfpo import federation
from mfpo.errors import Diverged, RunError, StepFailed
from mfpo.runs import checkpoint, directory, files, judging, metrics, summary
from mfpo.runs.building import make_algorithm, make_env
from mfpo.runs.checkpoint import Progress
from mfpo.runs.policy import Origin, Policy, load_policy, save_policy
from mfpo.runs.settings import Settings
from mfpo.types import Algorithm, Env, HostedEnv

Callback = Callable[[metrics.Row], object]
Notice = Callable[[str], object]
Started = Callable[[Path], object]
AnyPath = str | os.PathLike[str]
MakeEngine = Callable[[Settings, Any, Algorithm, Env], federation.Engine]  # settings, algorithm config, ...


@dataclasses.dataclass(frozen=True, repr=False)
class Run:
    """A finished run."""

    path: Path
    settings: Settings
    config: Any  # the algorithm's Config
    metrics: list[metrics.Row]  # a row per round
    summary: dict[str, Any]
    policy: Policy

    def __repr__(self) -> str:
        score = self.summary["evaluation"]["mean"]
        return f"<Run {self.path}: {self.settings.env}, {self.settings.algorithm}, score {score}>"


class Job(NamedTuple):
    """A run that is being trained: what its settings say, and what that is once built."""

    settings: Settings
    config: Any
    env: Env
    algorithm: Algorithm
    engine: federation.Engine


def train(
    settings: Settings,
    config: Any,
    out: AnyPath | None = None,
    callback: Callback | None = None,
    notice: Notice | None = None,
    started: Started | None = None,
    make_engine: MakeEngine | None = None,
) -> Run:
    """Train from round 1 in a new run directory: `out`, or a free name below runs/.

    callback(row) is called after every round, when it is safe on the disk; notice(sentence) with anything worth
    telling; started(path) once, with the run directory, before the first round. `make_engine` as in `resume`.
    """
    place = None if out is None else Path(out)
    if place is not None:
        directory.check_free(place)
    job = assemble(settings, config, make_engine)  # what can be wrong with settings is found before the disk is touched
    path = directory.create(place, job.settings, config)
    with directory.locked(path):
        return _go_on(path, job, callback, notice or _warn, started)


def resume(
    path: AnyPath,
    rounds: int | None = None,
    callback: Callback | None = None,
    notice: Notice | None = None,
    started: Started | None = None,
    make_engine: MakeEngine | None = None,
) -> Run:
    """Go on with a run where it was stopped, to the very result it would have had; or on to more `rounds`.

    An engine that is not to be had from settings alone, for its agents are elsewhere or its device is given, comes from
    `make_engine`.
    """
    place, notice = Path(path), notice or _warn
    settings, config = directory.read_config(place)
    if rounds is not None:
        settings = dataclasses.replace(settings, rounds=rounds)
    with directory.locked(place):
        done = rounds_done(place)
        if settings.rounds < done:
            raise RunError(f"The run {place} has already trained {done} rounds; --rounds must be at least that.")
        if rounds is not None:
            with files.writing(directory.CONFIG, place):
                directory.write_config(place, settings, config)
        finished = _finished(place, notice)
        if finished is not None:
            notice(f"The run {place} has already finished its {settings.rounds} rounds; there is nothing to do.")
            return finished
        job = assemble(settings, config, make_engine)
        if settings.devices and job.engine.devices != settings.devices:
            notice(
                f"The run {place} was trained on {settings.devices} devices and goes on with {job.engine.devices}; "
                "the result may differ in its last digits."
            )
        return _go_on(place, job, callback, notice, started)


def open_run(path: AnyPath) -> Run:
    """A finished run, to look at."""
    place = Path(path)
    settings, config = directory.read_config(place)
    outcome = summary.read(place)
    if outcome is None or outcome["rounds"] != settings.rounds:  # of fewer rounds: it is being trained further
        raise RunError(f"The run {place} is not finished; finish it with: {files.resume_command(place)}")
    return Run(place, settings, config, metrics.read(place / directory.METRICS), outcome, load_policy(place))


def _warn(sentence: str) -> None:
    """A warning that names the line which called mfpo."""
    frame, level = inspect.currentframe(), 1
    while frame and frame.f_back and str(frame.f_globals.get("__name__")).startswith("mfpo."):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, stacklevel=level)


def assemble(settings: Settings, config: Any, make_engine: MakeEngine | None = None) -> Job:
    """Build what settings say; all that can be wrong with them is found here, and nothing is compiled yet."""
    env = make_env(settings)
    algorithm = make_algorithm(settings, config, env)
    engine = (make_engine or _make_engine)(settings, config, algorithm, env)
    if settings.reference_every:
        engine = federation.measured(
            engine, algorithm, env, settings.seed, settings.reference_every, settings.reference_trajectories
        )
    # the config names the devices really used: how many there are can change the last bits of a result
    return Job(dataclasses.replace(settings, devices=engine.devices), config, env, algorithm, engine)


def _make_engine(settings: Settings, config: Any, algorithm: Algorithm, env: Env) -> federation.Engine:
    if isinstance(env, HostedEnv) and (env.worlds or env.processes):  # whether it can be made shows only when it is
        samples = algorithm.refine is not None or settings.reference_every > 0
        servers = (federation.of_server(env, 1).worlds or ((),)) if samples else ()
        env.open([dict(world) for world in dict.fromkeys((*env.worlds, *servers))] or [{}]).close()
    return federation.make_engine(
        settings.engine, algorithm, env, settings.agents, settings.seed, settings.devices, settings.faults
    )


def rounds_done(path: Path) -> int:
    """How far a run is: its newest checkpoint, or its summary if someone removed the checkpoints."""
    outcome = summary.read(path)
    return max(checkpoint.latest_round(path / directory.CHECKPOINTS), outcome["rounds"] if outcome else 0)


def _finished(path: Path, notice: Notice) -> Run | None:
    """The run, if all its files say that nothing is left to do."""
    outcome = summary.read(path)
    if outcome is None or outcome["rounds"] != directory.read_config(path)[0].rounds:
        return None
    try:
        return open_run(path)
    except RunError:
        notice(f"The policy of the run {path} is missing or damaged; it is made again.")
        return None


def _go_on(path: Path, job: Job, callback: Callback | None, notice: Notice, started: Started | None) -> Run:
    """From the last stored round, if any, to the end; the only training loop."""
    folder, log_file = path / directory.CHECKPOINTS, path / directory.METRICS
    with files.writing("the checkpoints", path):
        folder.mkdir(exist_ok=True)
        files.remove_temporary(path)
        files.remove_temporary(folder)
    if started is not None:
        started(path)
    state, progress = checkpoint.load(folder, jax.eval_shape(job.engine.start), notice)  # a second state may not fit
    if not progress.round:
        state = job.engine.start()
    with files.writing(directory.METRICS, path):
        if not progress.round and not checkpoint.latest_round(folder) and len(metrics.read(log_file)) > 1:
            notice(f"The checkpoints of {path} are gone; starting again from round 1.")
        rows = metrics.cut(log_file, progress.round)
    if len(rows) < progress.round:
        notice(f"{log_file} lacks {progress.round - len(rows)} of {progress.round} rounds; training is not affected.")
    while progress.round < job.settings.rounds:
        state, progress, row = _one_round(path, job, state, progress)
        failure = None
        if job.settings.evaluation_every and progress.round % job.settings.evaluation_every == 0:
            try:
                params = judging.acting(job.algorithm, state.server)
                returns = judging.returns_of(job.algorithm, job.env, params, job.settings)
                row |= metrics.judgement(np.concatenate(returns))
            except StepFailed as error:  # the round itself is done, and is stored first
                failure = error
        with files.uninterrupted():  # Ctrl-C now would only throw away a round that is done
            with files.writing(directory.METRICS, path):
                metrics.append(log_file, row)
            with files.writing(f"the checkpoint of round {progress.round}", path):
                checkpoint.save(folder, state, progress)
        if failure is not None:
            raise _unjudged(failure, path, progress) from failure
        rows.append(row)
        if callback is not None:
            callback(dict(row))
    return _finish(path, job, state, progress, rows)


def _one_round(
    path: Path, job: Job, state: federation.State, progress: Progress
) -> tuple[federation.State, Progress, metrics.Row]:
    number = progress.round + 1
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        state, log = job.engine.round(state, number)
    except Diverged as error:
        kept = f"The last finite state is checkpoint {number - 1} in {path}" if number > 1 else "It was the first round"
        sentence = str(error).rstrip(".")
        advice = "train again with a smaller --stepsize, and look at the size of observations and rewards"
        raise Diverged(f"{sentence}. {kept}; {advice}.") from error
    except StepFailed as error:
        safe = "All earlier rounds are safe" if number > 1 else "No round was done yet"
        raise StepFailed(f"{error}. {safe}; mend it and go on with: {files.resume_command(path)}") from error
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise RunError(
            f"Round {number} needs more memory than there is; fewer --agents or --trajectories or a shorter --horizon "
            "need less."
        ) from error
    jax.block_until_ready(state)  # type: ignore[no-untyped-call]
    seconds = time.perf_counter() - wall
    cpu_seconds = (time.process_time() - cpu) / job.engine.sharing  # a process has one account for all
    steps, _, episodes = log.returns.shape
    absent = log.worked < job.settings.agents
    progress = Progress(
        round=number,
        env_steps=progress.env_steps + int(np.sum(log.lengths, dtype=np.int64)),
        trajectories_per_agent=progress.trajectories_per_agent
        + (steps * episodes * log.worked / job.settings.agents if absent else steps * episodes),
        bytes_up=progress.bytes_up + log.worked * job.engine.bytes_up,  # what comes too late has been sent, too
        bytes_down=progress.bytes_down + log.worked * job.engine.bytes_down,
        wall_seconds=progress.wall_seconds + seconds,
        cpu_seconds=progress.cpu_seconds + cpu_seconds,
    )
    return state, progress, metrics.row_of(progress, log, seconds, cpu_seconds)


def _finish(path: Path, job: Job, state: federation.State, progress: Progress, rows: list[metrics.Row]) -> Run:
    """Policy, evaluation, summary. The summary comes last: it is what makes a run finished."""
    settings = job.settings
    params = judging.acting(job.algorithm, state.server)
    origin = Origin(settings.algorithm, job.config, job.env.spec, settings.agents)
    policy = Policy(origin, job.algorithm, params)
    with files.writing("the policy", path), files.uninterrupted():
        save_policy(path, policy)
    try:
        evaluation = judging.judge(job.algorithm, job.env, params, settings)
    except StepFailed as error:
        raise _unjudged(error, path, progress) from error
    outcome = summary.summarise(settings, progress, evaluation, job.engine.devices)
    with files.writing(summary.NAME, path):
        summary.write(path, outcome)
    return Run(path, settings, job.config, rows, outcome, policy)


def _unjudged(failure: StepFailed, path: Path, progress: Progress) -> StepFailed:
    return StepFailed(
        f"{failure} (evaluation after round {progress.round}). All rounds so far are safe; go on with: "
        f"{files.resume_command(path)}"
    )
