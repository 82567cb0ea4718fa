"""MuJoCo locomotion, Gymnasium's v5 tasks, many copies stepped in one call.

A task is a row of `TASKS`: how it is stepped, when an episode ends, what is observed and what is rewarded.
"""

import copy
import functools
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mfpo.envs.worlds import check_physics
from mfpo.errors import CopyFailed, MissingExtra
from mfpo.types import Box, EnvSpec, HostedEnv, Outcome

NAMES = (
    "HalfCheetah-v5",
    "Hopper-v5",
    "Walker2d-v5",
    "Swimmer-v5",
    "InvertedPendulum-v5",
    "Ant-v5",
    "Humanoid-v5",
)

Floats = NDArray[np.float64]


class World(NamedTuple):
    """The physics. A task that lacks something (contacts, damping) is the same for every multiplier of it."""

    gravity: float = 9.81  # m/s², downwards
    friction: float = 1.0  # multiplies the sliding friction of every surface,
    mass: float = 1.0  # the mass and the inertia of every body,
    damping: float = 1.0  # and the damping of every joint


def always(qpos: Floats, qvel: Floats) -> NDArray[np.bool_]:
    """A task without an end."""
    return np.ones(len(qpos), np.bool_)


def hopper_stands(qpos: Floats, qvel: Floats) -> NDArray[np.bool_]:
    """High enough, nearly upright, and nothing but its place on the track beyond ±100."""
    calm = (np.abs(qpos[:, 2:]) < 100).all(axis=1) & (np.abs(qvel) < 100).all(axis=1)
    return calm & (qpos[:, 1] > 0.7) & (np.abs(qpos[:, 2]) < 0.2)


def walker_stands(qpos: Floats, qvel: Floats) -> NDArray[np.bool_]:
    """Neither down nor in the air, and less than a radian from upright."""
    return (qpos[:, 1] > 0.8) & (qpos[:, 1] < 2.0) & (np.abs(qpos[:, 2]) < 1.0)


def pole_stands(qpos: Floats, qvel: Floats) -> NDArray[np.bool_]:
    """At most 0.2 radians from upright."""
    return np.isfinite(qpos).all(axis=1) & np.isfinite(qvel).all(axis=1) & (np.abs(qpos[:, 1]) <= 0.2)


def ant_stands(qpos: Floats, qvel: Floats) -> NDArray[np.bool_]:
    """Neither down nor in the air."""
    finite = np.isfinite(qpos).all(axis=1) & np.isfinite(qvel).all(axis=1)
    return finite & (qpos[:, 2] >= 0.2) & (qpos[:, 2] <= 1.0)


def humanoid_stands(qpos: Floats, qvel: Floats) -> NDArray[np.bool_]:
    """Neither down nor in the air."""
    return (qpos[:, 2] > 1.0) & (qpos[:, 2] < 2.0)


class Contacts(NamedTuple):
    """What is observed of bodies and their contacts."""

    place: str  # the field with the positions of the bodies that tell how far it is,
    bodies: slice  # and which these are; each counts by its mass
    fields: tuple[tuple[str, int], ...]  # observed after the velocities, but for so many first rows; then the forces
    force: float  # of a contact, which is observed up to ±this
    price: float  # the reward is lower by this times the square of the forces,
    most: float  # but not by more than this


class Task(NamedTuple):
    """One row per environment; an episode ends as soon as the copy is not healthy."""

    xml: str  # among Gymnasium's assets
    frame_skip: int  # physics steps per step
    healthy: Callable[[Floats, Floats], NDArray[np.bool_]]  # qpos, qvel [n, ...] -> [n]
    hidden: int  # leading positions that are not observed: where on the track it is
    max_speed: float  # velocities are observed up to ±this
    forward: float  # the reward: this times the speed along the track,
    alive: float  # plus this if healthy,
    effort: float  # minus this times the square of the action
    noise: float  # positions begin uniform within ±this of the model's,
    normal: bool  # velocities uniform likewise, or normal with this standard deviation
    contacts: Contacts | None = None  # None: the place is the first position


ON_FOUR_LEGS = Contacts("xpos", slice(1, 2), (), 1.0, 5e-4, math.inf)
ON_TWO_LEGS = Contacts("xipos", slice(None), (("cinert", 1), ("cvel", 1), ("qfrc_actuator", 6)), math.inf, 5e-7, 10.0)
TASKS = {
    "HalfCheetah-v5": Task("half_cheetah.xml", 5, always, 1, math.inf, 1.0, 0.0, 0.1, 0.1, True),
    "Hopper-v5": Task("hopper.xml", 4, hopper_stands, 1, 10.0, 1.0, 1.0, 1e-3, 5e-3, False),
    "Walker2d-v5": Task("walker2d_v5.xml", 4, walker_stands, 1, 10.0, 1.0, 1.0, 1e-3, 5e-3, False),
    "Swimmer-v5": Task("swimmer.xml", 4, always, 2, math.inf, 1.0, 0.0, 1e-4, 0.1, False),
    "InvertedPendulum-v5": Task("inverted_pendulum.xml", 2, pole_stands, 0, math.inf, 0.0, 1.0, 0.0, 0.01, False),
    "Ant-v5": Task("ant.xml", 5, ant_stands, 2, math.inf, 1.0, 1.0, 0.5, 0.1, True, ON_FOUR_LEGS),
    "Humanoid-v5": Task("humanoid.xml", 5, humanoid_stands, 2, math.inf, 1.25, 5.0, 0.1, 0.01, False, ON_TWO_LEGS),
}


def silence() -> None:
    """From here on MuJoCo neither prints its warnings nor writes MUJOCO_LOG.TXT into the working folder.

    For good: to speak only between our steps would mean to switch for the whole process while other threads step.
    """
    import mujoco

    config = mujoco.MjLogConfig.get()
    config.logto_console = config.logto_file = False
    config.set()


@functools.cache
def load(name: str) -> Any:
    """Gymnasium's model, except that a copy that diverges stays so; MuJoCo would put it back to its start."""
    gymnasium = importlib.util.find_spec("gymnasium")  # found only: its import takes longer than all else here
    try:
        import mujoco.batch
    except ImportError:
        raise MissingExtra(name, "mujoco") from None
    if gymnasium is None or gymnasium.origin is None:
        raise MissingExtra(name, "mujoco")
    silence()
    path = Path(gymnasium.origin).parent / "envs" / "mujoco" / "assets" / TASKS[name].xml
    model = mujoco.MjModel.from_xml_path(str(path))
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET.value
    return model


def build(name: str, world: World) -> Any:
    """The model in this world."""
    import mujoco

    model = copy.copy(load(name))
    model.opt.gravity[2] = -world.gravity
    model.geom_friction[:, 0] *= world.friction
    model.body_mass *= world.mass
    model.body_inertia *= world.mass
    model.dof_damping *= world.damping
    mujoco.mj_setConst(model, mujoco.MjData(model))  # what MuJoCo derives from these
    return model


def check(name: str, given: Mapping[str, float]) -> World:
    """The world with these parameters."""
    world = World()._replace(**given)
    check_physics(name, world._asdict(), may_be_zero="gravity")
    return world


class Bodies:
    """What MuJoCo tells of the bodies of many copies, and of forces of contacts, for which it has to be asked."""

    def __init__(self, contacts: Contacts, batch: Any, models: Sequence[Any]) -> None:
        import mujoco

        self.contacts, self.batch, self.models = contacts, batch, models
        self.position = batch.bind(contacts.place)
        mass = np.stack([model.body_mass[contacts.bodies] for model in models])
        self.share = mass / mass.sum(axis=1, keepdims=True)
        self.forces = np.zeros((len(models), models[0].nbody, 6))
        told = [*((batch.bind(field), first) for field, first in contacts.fields), (self.forces, 1)]
        self.seen = [values[:, first:].reshape(len(models), -1) for values, first in told]
        self.data = mujoco.MjData(models[0])  # a copy of one simulation's at a time

    def begin(self, which: NDArray[np.intp]) -> None:
        """Where they begin, nothing has been felt yet."""
        self.batch.forward(which)
        self.forces[which] = 0

    def feel(self, which: NDArray[np.intp]) -> None:
        """What the step they have made came to."""
        import mujoco

        for i in which.tolist():
            mujoco.mj_rnePostConstraint(self.models[i], self.batch.get_data(i, self.data))
            self.forces[i] = self.data.cfrc_ext
        if self.contacts.force < math.inf:
            self.forces[which] = self.forces[which].clip(-self.contacts.force, self.contacts.force)

    def place(self, chosen: Any) -> Floats:
        """How far each has come, as of the last substep, like all that MuJoCo tells of bodies."""
        x: Floats = np.einsum("nb,nb->n", self.share[chosen], self.position[chosen, self.contacts.bodies, 0])
        return x

    def observe(self, chosen: Any) -> list[Floats]:
        """What there is to see besides positions and velocities."""
        return [values[chosen] for values in self.seen]

    def price(self, chosen: Any) -> Floats:
        """What the contacts cost."""
        squares = np.square(self.forces[chosen]).sum(axis=(1, 2))
        price: Floats = np.minimum(self.contacts.price * squares, self.contacts.most)
        return price


class Simulations:
    """`Copies` of one task.

    `mujoco.batch` carries the solver's warm start from call to call, so that a run is Gymnasium's bit for bit.
    `mujoco.rollout` does not and is no faster: 200 HalfCheetahs are 3e-3 away after 60 steps and anywhere after 100,
    whether it starts from zero or from the last change of velocity.
    """

    def __init__(self, name: str, worlds: Sequence[World]) -> None:
        from mujoco.batch import Batch

        of_world = {world: build(name, world) for world in set(worlds)}
        models = [of_world[world] for world in worlds]
        self.task = TASKS[name]
        self.time = self.task.frame_skip * load(name).opt.timestep
        contacts = self.task.contacts
        # one thread: the caller has threads of its own; persistent: every simulation keeps what forces are made of
        self.batch = Batch(load(name), len(worlds), 1, persistent=contacts is not None)
        self.batch.set_models(models)
        self.start = self.batch.state[0].copy()
        self.rngs: dict[int, np.random.Generator] = {}
        self.qpos, self.qvel, self.ctrl = (self.batch.bind(field) for field in ("qpos", "qvel", "ctrl"))
        self.bodies = Bodies(contacts, self.batch, models) if contacts else None

    def observe(self, chosen: Any) -> NDArray[np.float32]:
        """Positions but for the hidden ones, velocities, and what there is to see of bodies."""
        most, qvel = self.task.max_speed, self.qvel[chosen]
        parts = [self.qpos[chosen, self.task.hidden :], qvel.clip(-most, most) if most < math.inf else qvel]
        if self.bodies:
            parts += self.bodies.observe(chosen)
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")

    def reset(self, which: NDArray[np.intp], seeds: NDArray[np.uint64] | None) -> NDArray[np.float32]:
        """Begin episodes where Gymnasium begins them with the same seeds."""
        noise, normal = self.task.noise, self.task.normal
        self.batch.state[which] = self.start
        if seeds is not None:
            self.rngs.update(zip(which.tolist(), map(np.random.default_rng, seeds.tolist()), strict=True))
        for i in which.tolist():
            rng = self.rngs[i]
            qpos, qvel = self.qpos[i], self.qvel[i]
            qpos += rng.uniform(-noise, noise, len(qpos))
            qvel += noise * rng.standard_normal(len(qvel)) if normal else rng.uniform(-noise, noise, len(qvel))
        if self.bodies:
            self.simulate(self.bodies.begin, which)
        return self.observe(which)

    def step(self, which: NDArray[np.intp], action: NDArray[Any]) -> Outcome:
        """One step in each. MuJoCo keeps the action within its bounds; its price is that of the action as given."""
        task, bodies, everyone = self.task, self.bodies, len(which) == len(self.qpos)
        chosen = slice(None) if everyone else which  # of all it takes no copies
        place = bodies.place if bodies else lambda chosen: self.qpos[chosen, 0].copy()
        before = place(chosen)
        self.ctrl[chosen] = action
        self.simulate(self.batch.step, None if everyone else which, task.frame_skip)
        if bodies:
            bodies.feel(which)
        with np.errstate(over="ignore", invalid="ignore"):  # a copy that diverged is the caller's to find
            healthy = task.healthy(self.qpos[chosen], self.qvel[chosen])
            speed = (place(chosen) - before) / self.time
            effort = np.square(action, dtype=np.float64).sum(axis=1)
            reward = task.forward * speed + task.alive * healthy - task.effort * effort
            if bodies:
                reward -= bodies.price(chosen)
            shown = self.observe(chosen)
            return Outcome(shown, reward.astype(np.float32), ~healthy, np.zeros(len(which), np.bool_))

    def simulate(self, call: Callable[..., None], *given: Any) -> None:
        """A call in which a simulation may fail."""
        from mujoco.batch import SimulationError

        try:
            call(*given)
        except SimulationError as error:
            raise CopyFailed(int(error.ids[0]), self.batch.error(int(error.ids[0]))) from error

    def close(self) -> None:
        """Free the simulations and their threads."""
        vars(self).clear()


def make(name: str) -> HostedEnv:
    """The environment."""
    model = load(name)
    low, high = (tuple(bound.tolist()) for bound in model.actuator_ctrlrange.T.astype(np.float32))
    first = Simulations(name, [World()])
    size = first.observe(slice(None)).shape[1]
    first.close()
    spec = EnvSpec(name, (size,), Box(low, high), horizon=1000)

    def open_(worlds: Sequence[Mapping[str, float]], learning: bool = False, together: bool = False) -> Simulations:
        return Simulations(name, [check(name, world) for world in worlds])

    return HostedEnv(spec, World(), open_, parallel=True)
