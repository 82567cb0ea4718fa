"""Pytrees <-> what travels: arrays with a name, a shape and a type, checked against the algorithm's specification.

A message is refused as a whole, with one sentence, if anything about it is not as specified. Only after that is a tree
made of it. Bytes are counted as `trees.count_bytes` counts them: the arrays, without the envelope.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfpo.errors import MessageRefused, MissingExtra
from mfpo.federation.flower import frames
from mfpo.federation.flower.frames import FRAME, Entries, Entry, Frame, Value
from mfpo.federation.logs import StepLog
from mfpo.federation.round import count_steps
from mfpo.runs.directory import version
from mfpo.runs.metrics import OWN
from mfpo.runs.tensors import describe, named_leaves
from mfpo.types import Algorithm, PyTree

try:
    from flwr.app import Array, ArrayRecord, RecordDict
except ImportError as error:
    raise MissingExtra("A federation over the network", "flower") from error

FORMAT = 1  # of messages
RAW = "raw"  # how Flower's arrays are serialised: their bytes, nothing else
MOST_METRICS = 64


class Specification(NamedTuple):
    """What each message must look like: trees of shapes and types."""

    download: PyTree
    upload: PyTree


def specify(algorithm: Algorithm) -> Specification:
    """The messages of an algorithm."""
    key = jax.random.key(0)
    return Specification(
        download=jax.eval_shape(lambda: algorithm.download(algorithm.init(key))),
        upload=jax.eval_shape(lambda: algorithm.upload(algorithm.join(key))),
    )


def entries_of(tree: PyTree) -> Entries:
    """A tree, ready to travel."""
    return entries_of_named({name: np.asarray(leaf) for name, leaf in named_leaves(tree)})


def entries_of_named(arrays: dict[str, np.ndarray]) -> Entries:
    """Arrays by name, ready to travel."""
    return {name: Entry(x.dtype.name, x.shape, np.ascontiguousarray(x).tobytes()) for name, x in arrays.items()}


def tree_of(entries: Entries, specification: PyTree, what: str, finite: bool = True) -> PyTree:
    """The tree that travelled, or `MessageRefused` with `what` in front: "The upload of agent 3"."""
    named = named_leaves(specification)
    odd = {name for name, _ in named} ^ entries.keys()
    if odd:
        name = min(odd)
        raise MessageRefused(f"{what} {'has an unexpected' if name in entries else 'lacks the'} array {name[:80]!r}.")
    leaves = []
    for name, wanted in named:
        array = _array(entries[name], wanted, f"{what} holds {name!r}")
        if finite and not np.all(np.isfinite(array)):
            raise MessageRefused(f"{what} holds numbers in {name!r} that are not finite.")
        leaves.append(jnp.array(array))
    return jax.tree.unflatten(jax.tree.structure(specification), leaves)


def _array(entry: Entry, wanted: Any, what: str) -> np.ndarray:
    """The type is taken from the specification: a name of a type that came from elsewhere is never looked up."""
    dtype = np.dtype(wanted.dtype)
    if (entry.dtype, entry.shape) != (dtype.name, tuple(wanted.shape)):
        given = f"{entry.dtype[:20]}{list(entry.shape[:8])}"
        raise MessageRefused(f"{what} as {given} where {describe(wanted)} is needed.")
    size = math.prod(entry.shape) * dtype.itemsize
    if len(entry.data) != size:
        raise MessageRefused(f"{what} in {len(entry.data)} bytes where {size} are needed.")
    return np.frombuffer(entry.data, dtype).reshape(entry.shape)


def count_bytes(entries: Entries) -> int:
    """The size of a message that travels."""
    return sum(len(entry.data) for entry in entries.values())


def report_of(entries: Entries, algorithm: Algorithm, round_number: int, what: str) -> StepLog | None:
    """What an agent tells of its local steps, or `MessageRefused`; None if it keeps that to itself.

    How an algorithm calls its metrics is known only where its environment is, so names are free; shapes are not.
    """
    if not entries:
        return None
    steps, names = count_steps(algorithm, round_number), sorted(entries.keys() - {"returns", "lengths"})
    odd = [name for name in names if not name.startswith("metrics/") or len(name) > 100 or OWN.fullmatch(name[8:])]
    if odd or len(names) > MOST_METRICS:
        found = f"an unexpected array {odd[0][:80]!r}" if odd else f"{len(names)} metrics; {MOST_METRICS} is the most"
        raise MessageRefused(f"{what} reports {found}.")
    episodes = (steps, 1, algorithm.plan.episodes)

    def blank() -> StepLog:
        metrics = {name.removeprefix("metrics/"): jnp.zeros((steps, 1)) for name in names}
        return StepLog(jnp.zeros(episodes), jnp.zeros(episodes, jnp.int32), metrics)

    log: StepLog = tree_of(entries, jax.eval_shape(blank), what, finite=False)
    if np.any(np.asarray(log.lengths) < 0):
        raise MessageRefused(f"{what} reports an episode of less than no steps.")
    return log


def known() -> dict[str, Value]:
    """What every message says of its sender."""
    return {"format": FORMAT, "version": version()}


def check_envelope(envelope: dict[str, Value], run: str, round_number: int, what: str) -> None:
    """Refuse what belongs to another run or round: it came late, or was sent again."""
    if envelope.get("run") != run:
        raise MessageRefused(f"{what} belongs to another run.")
    if envelope.get("round") != round_number:
        raise MessageRefused(f"{what} is of round {envelope.get('round')}, and this is round {round_number}.")


def check_version(envelope: dict[str, Value], what: str) -> None:
    """Refuse what another version of mfpo sent: two versions may not mean the same by it."""
    for name, ours in known().items():
        theirs = envelope.get(name)
        if theirs != ours:
            raise MessageRefused(
                f"{what} has {name} {str(theirs)[:20]} of mfpo, and here it is {ours}; install the same mfpo on all "
                "machines."
            )


def to_records(frame: Frame) -> RecordDict:
    """A frame as Flower carries it: one array of bytes. It makes several requests for every array there is."""
    content = frames.pack(frame)
    return RecordDict({FRAME: ArrayRecord({FRAME: Array("uint8", (len(content),), RAW, content)})})


def from_records(records: RecordDict) -> Frame:
    """The frame that Flower carried; what else there may be is refused."""
    for name, record in records.items():
        if name != FRAME or not isinstance(record, ArrayRecord) or list(record) != [FRAME]:
            raise MessageRefused(f"The message holds a record {name[:80]!r} that is none of ours.")
    try:
        return frames.unpack(records.array_records[FRAME][FRAME].data)
    except (KeyError, ValueError) as error:
        raise MessageRefused(f"The message holds no frame ({error}).") from error
