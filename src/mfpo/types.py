"""The vocabulary: what an environment is, what a batch is, what an algorithm is.

An algorithm is a value: a NamedTuple of pure functions written for one agent. An engine decides where they run. See
`Algorithm` for the contract.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

Array = jax.Array
Key = jax.Array  # a typed PRNG key
PyTree = Any
Metrics = dict[str, Array]  # scalars by name

TIME_BLOCK = 50  # learning walks over the time axis of a batch in such blocks; a longer one is padded to a multiple


class Discrete(NamedTuple):
    """Actions 0 .. n-1."""

    n: int


class MultiDiscrete(NamedTuple):
    """Several discrete actions at once, the i-th of them 0 .. n[i]-1."""

    n: tuple[int, ...]


class Box(NamedTuple):
    """Real vectors between `low` and `high`, one bound per dimension; a dimension may be unbounded (±inf)."""

    low: tuple[float, ...]
    high: tuple[float, ...]


class EnvSpec(NamedTuple):
    """What an algorithm may know of an environment."""

    id: str
    observation_shape: tuple[int, ...]
    action: Discrete | MultiDiscrete | Box
    horizon: int  # H: an episode that is still running after H steps is truncated
    stack: int = 0  # an observation is the last `stack` frames, oldest first, zeros before an episode; 0: no frames


World = Mapping[str, float]  # parameters of an environment that differ from the usual ones, by name


class PureEnv(NamedTuple):
    """An environment as pure functions of one state; batching is the caller's `vmap`."""

    spec: EnvSpec
    reset: Callable[[Key], PyTree]  # key -> state
    observe: Callable[[PyTree], Array]  # state -> observation
    step: Callable[[PyTree, Array, Key], tuple[PyTree, Array, Array]]  # state, action, key -> state, reward, terminated
    world: Any = None  # a NamedTuple of numbers: the environment's parameters with their usual values
    at: Callable[[Any], "PureEnv"] | None = None  # world -> the environment with these parameters
    worlds: tuple[Any, ...] = ()  # the world of every agent; empty: all live in the usual one


class Copies(Protocol):
    """Many copies of a hosted environment, stepped as one batch.

    `which` holds the numbers of the copies meant, in ascending order. What a copy shows is an observation, or its
    newest frame if the spec stacks frames.
    """

    def reset(self, which: NDArray[np.intp], seeds: NDArray[np.uint64] | None) -> NDArray[Any]:
        """Begin an episode in each, and show its start [n, ...].

        A seed decides all that is random from there on, further episodes without a seed of their own included.
        """

    def step(self, which: NDArray[np.intp], action: NDArray[Any]) -> "Outcome":
        """One step in each. Copies that are not named cost nothing, unless they were opened to be stepped together.

        Which copy failed is told by `CopyFailed`.
        """

    def close(self) -> None:
        """Free what the copies hold."""


class Outcome(NamedTuple):
    """What a step of some copies came to."""

    shown: NDArray[Any]  # [n, ...]
    reward: NDArray[np.float32]  # [n]
    terminated: NDArray[np.bool_]  # [n]
    truncated: NDArray[np.bool_]  # [n]
    score: NDArray[np.float64] | None = None
    # [n] of games that ended with this step, NaN for others; None: a game is an episode, its score what it was worth


class Compiled(NamedTuple):
    """How a compiled program steps copies that were opened for `learning`, and to be stepped `together`.

    It steps all of them, and where an episode ends, what is shown is the start of the next.
    """

    step: Callable[[PyTree, Array], tuple[PyTree, Any]]  # state, action [n] -> state, Outcome with scores
    # has to be hashable: equal ones share a program
    enter: Callable[[], PyTree]  # where the copies stand
    leave: Callable[[PyTree], None]  # that is where the program left them


class HostedEnv(NamedTuple):
    """An environment that runs outside the compiled program."""

    spec: EnvSpec
    world: Any  # as in PureEnv; None if only the environment itself knows its parameters
    open: Callable[..., Copies]  # worlds, learning=False, together=False -> a copy for each of these worlds (`World`)
    # games may be easier to learn in parts: where `learning`, rewards and ends of episodes may differ from the game's
    # all may be stepped `together`: one that is left out of a step will be reset before its next
    parallel: bool = False  # whether threads can step different copies at the same time
    processes: int = 0  # that each step some of the copies; 0: this one steps all of them
    stop: Callable[[], None] | None = None  # with processes: end those that run now, whatever they are busy with
    worlds: tuple[tuple[tuple[str, float], ...], ...] = ()  # the world of every agent, as pairs; empty: as in PureEnv
    compiled: Callable[[Any], Compiled] | None = None  # its Copies -> how a program on the CPU steps them, if it can


Env = PureEnv | HostedEnv


class Trajectories(NamedTuple):
    """What one agent saw in a local step: D columns, time first; H is a multiple of TIME_BLOCK or less than it.

    A column is one episode from its start to its end, or a segment (`Plan.segment`): exactly H slots, in which an
    episode that ends is followed by the next, and the last one is cut. Slots with `live` false have reward zero; what
    they hold otherwise is finite and means nothing, but for one case: where an episode was truncated within a segment,
    the slot after it is not live and holds the observation the truncated step led to.

    terminated and truncated are two facts: a terminated episode is worth nothing more, a truncated one would have gone
    on from that observation or, at the end of a column, from `last_obs`.
    """

    obs: Array  # [H, D, ...] what the agent saw; of frames that are stacked the newest, after stack - 1 earlier ones
    action: Array  # [H, D, ...] what `act` asked to remember of its action (`aux`)
    reward: Array  # [H, D]
    live: Array  # [H, D] the step was taken
    terminated: Array  # [H, D] the step ended its episode for good
    truncated: Array  # [H, D] the step was the last one the horizon, or the segment, allows
    last_obs: Array  # [D, ...] the observation after each column's last step
    length: Array  # [] slots in use: live is false from here on
    score: Array  # [D] the return of the column's episode, or the mean of those that ended in it (NaN: none did)


class Plan(NamedTuple):
    """What an agent, and a server that refines, samples between two communications."""

    local_steps: int  # K: calls of `learn` per round
    episodes: int  # D: columns per call
    initial_steps: int = 0  # extra calls of `learn` before the first round's K
    segment: int = 0  # steps in a column, a multiple of TIME_BLOCK or less than it; 0: columns are whole episodes
    server_steps: int = 0  # the most calls of `refine` per round
    server_episodes: int = 0  # columns per call of `refine`, in the agents' world if they share one, or the usual one


class Reference(NamedTuple):
    """What it takes to compare the direction a server follows with a gradient measured on samples of its own."""

    agent: Callable[[PyTree, PyTree], PyTree]  # Server before and after `merge` -> Agent where the direction was taken
    direction: Callable[[PyTree], PyTree]  # that Agent -> the direction
    gradient: Callable[[PyTree, Trajectories], PyTree]  # that Agent, a batch as for `learn` -> an estimate of it


class Algorithm(NamedTuple):
    """The contract. Written for one agent; `Server`, `Agent`, `Download`, `Upload` are the algorithm's own NamedTuples.

    `Download` and `Upload` are all that ever crosses the wire, and the unit in which communication is counted. `Agent`
    is private and never leaves its node. Algorithms touch no environment, clock, disk, logger or socket.
    """

    plan: Plan
    init: Callable[[Key], PyTree]  # key -> Server
    join: Callable[[Key], PyTree]  # key -> Agent
    download: Callable[[PyTree], PyTree]  # Server -> Download
    receive: Callable[[PyTree, PyTree], PyTree]  # Agent, Download -> Agent
    actor: Callable[[PyTree], PyTree]  # Agent or Server -> params of `act`
    act: Callable[[PyTree, Array, Key], tuple[Array, Array]]  # params, obs, key -> action, aux
    greedy: Callable[[PyTree, Array], Array]  # params, obs -> action
    learn: Callable[[PyTree, Trajectories, Key], tuple[PyTree, Metrics]]  # one local step
    upload: Callable[[PyTree], PyTree]  # Agent -> Upload
    merge: Callable[[PyTree, PyTree, Array, Key], tuple[PyTree, Metrics]]  # Server, Upload[N], mask[N], key -> Server
    # if it chooses between the uploads, its metrics include which it `kept` [N]
    withstands: Callable[[int], int] | None = None  # if it does: how many liars among so many uploads are not too many
    refine: Callable[[PyTree, Trajectories, Key], tuple[PyTree, Metrics]] | None = None
    # Server, what it saw itself, key -> Server: a step of the server on its own samples, after `merge`
    refinements: Callable[[PyTree], Array] | None = None  # merged Server -> how many such steps follow
    ready: Callable[[PyTree, Array], Array] | None = None  # params, frame -> what `act` makes of it, zeros of none
    # `act` takes frames so made ready, joined along their last axis, for the stack itself: each is made ready once
    reference: Reference | None = None  # if the server follows a direction that stands for a gradient
