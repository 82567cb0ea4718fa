"""What travels comes back the same; what is not as specified is refused with one sentence."""

import struct
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flwr")

from mfpo import algorithms, envs
from mfpo.errors import MessageRefused
from mfpo.federation import round as federation_round
from mfpo.federation.flower import frames, wire
from mfpo.federation.flower.frames import Entries, Entry, Frame
from mfpo.learning import trees


class Message(NamedTuple):
    weights: Any
    count: Any
    nothing: tuple[()] = ()


MESSAGE = Message({"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.float32(0.5)}, jnp.array([3, 4], jnp.int32))
SPECIFICATION = jax.eval_shape(lambda: MESSAGE)


def same(one: Any, other: Any) -> bool:
    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        x.dtype == y.dtype and np.array_equal(x, y)
        for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def through_flower(frame: Frame) -> Frame:
    return wire.from_records(wire.to_records(frame))


def through_a_socket(frame: Frame) -> Frame:
    return frames.unpack(frames.pack(frame))


@pytest.mark.parametrize("carrier", [through_flower, through_a_socket])
def test_a_tree_comes_back_the_same(carrier: Any) -> None:
    sent = Frame({"run": "x", "round": 3, "ok": True}, {"upload": wire.entries_of(MESSAGE), "report": {}})
    got = carrier(sent)
    assert got == sent
    assert same(wire.tree_of(got.groups["upload"], SPECIFICATION, "It"), MESSAGE)


@pytest.mark.parametrize("name", algorithms.list_algorithms())
def test_bytes_are_those_the_metrics_count(name: str) -> None:
    env = "CartPole-v1" if name != "fed_sac" else "Pendulum-v1"
    algorithm = algorithms.make(name, algorithms.config_class(name)(), envs.make(env).spec, 3)
    key = jax.random.key(0)
    upload = algorithm.upload(algorithm.join(key))
    download = algorithm.download(algorithm.init(key))
    up, down = federation_round.message_bytes(algorithm)
    assert wire.count_bytes(wire.entries_of(upload)) == up == trees.count_bytes(upload)
    assert wire.count_bytes(wire.entries_of(download)) == down
    specification = wire.specify(algorithm)
    assert same(wire.tree_of(wire.entries_of(upload), specification.upload, "It"), upload)
    assert same(wire.tree_of(wire.entries_of(download), specification.download, "It"), download)


def without(name: str) -> Entries:
    return {key: entry for key, entry in wire.entries_of(MESSAGE).items() if key != name}


BAD = {
    "lacks the array 'count'": without("count"),
    "has an unexpected array 'more'": without("") | {"more": Entry("float32", (), bytes(4))},
    "holds 'count' as int32[3] where int32[2] is needed": without("") | {"count": Entry("int32", (3,), bytes(12))},
    "holds 'count' as float32[2] where int32[2] is needed": without("") | {"count": Entry("float32", (2,), bytes(8))},
    "holds 'count' as object[2] where": without("") | {"count": Entry("object", (2,), bytes(16))},
    "holds 'count' in 4000 bytes where 8 are needed": without("") | {"count": Entry("int32", (2,), bytes(4000))},
    "holds 'count' in 7 bytes": without("") | {"count": Entry("int32", (2,), bytes(7))},
    "in 'weights/b' that are not finite": without("") | wire.entries_of({"weights/b": jnp.float32(np.nan)}),
    "in 'weights/w' that are not finite": without("")
    | wire.entries_of({"weights/w": jnp.arange(6.0).reshape(2, 3) / jnp.arange(6.0).reshape(2, 3)}),
}


@pytest.mark.parametrize("sentence", BAD)
def test_what_is_not_as_specified_is_refused(sentence: str) -> None:
    with pytest.raises(MessageRefused) as refusal:
        wire.tree_of(BAD[sentence], SPECIFICATION, "The upload of agent 3")
    assert str(refusal.value).startswith("The upload of agent 3 ") and sentence in str(refusal.value)


def test_a_late_and_a_repeated_message_are_recognised() -> None:
    good = {**wire.known(), "run": "a", "round": 7}
    wire.check_envelope(good, "a", 7, "It")
    for change, sentence in (
        ({"round": 6}, "It is of round 6, and this is round 7."),
        ({"run": "b"}, "It belongs to another run."),
    ):
        with pytest.raises(MessageRefused, match=sentence):
            wire.check_envelope({**good, **change}, "a", 7, "It")


def test_another_version_of_mfpo_is_told_what_to_install() -> None:
    wire.check_version(wire.known(), "It")
    for change in ({"format": 0}, {"version": "0.0.1"}, {"version": None}):
        with pytest.raises(
            MessageRefused, match=r"of mfpo, and here it is .*; install the same mfpo on all machines\."
        ):
            wire.check_version({**wire.known(), **change}, "It")


def test_records_that_are_none_of_ours_are_refused() -> None:
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

    records = wire.to_records(Frame({"round": 1}, {"upload": wire.entries_of(MESSAGE)}))
    records["trajectories"] = MetricRecord({"x": 1.0})
    with pytest.raises(MessageRefused, match="'trajectories'"):
        wire.from_records(records)
    nonsense = Array("uint8", (3,), "raw", b"xyz")
    for record, sentence in (
        ({"frame": nonsense, "more": nonsense}, "a record 'frame' that is none of ours"),
        ({"frame": nonsense}, "holds no frame"),
    ):
        with pytest.raises(MessageRefused, match=sentence):
            wire.from_records(RecordDict({"frame": ArrayRecord(record)}))
    with pytest.raises(MessageRefused, match="holds no frame"):
        wire.from_records(RecordDict({}))


@pytest.mark.parametrize("cut", [0, 5, 12, 40, -1])
def test_half_a_frame_is_no_frame(cut: int) -> None:
    whole = frames.pack(Frame({"round": 1}, {"upload": wire.entries_of(MESSAGE)}))
    with pytest.raises(ValueError):
        frames.unpack(whole[:cut])


@pytest.mark.parametrize(
    "header",
    [
        '{"envelope": {}, "groups": ' + '{"a": ' * 100_000,
        '{"envelope": ' + "[" * 100_000,
        '{"envelope": {}, "groups": {"upload": [["w", "float32", [Infinity], 0]]}}',
        '{"envelope": {}, "groups": {"upload": [["w", "float32", [1e999], 0]]}}',
        '{"envelope": {}, "groups": {"upload": [["w", "float32", [NaN], 0]]}}',
        '{"envelope": {}, "groups": {"upload": [["w", "float32", [1], "x"]]}}',
    ],
    ids=lambda header: header[-40:],
)
def test_a_header_that_cannot_be_is_no_frame(header: str) -> None:
    content = header.encode()
    with pytest.raises(ValueError):
        frames.unpack(struct.pack("!QI", len(content), len(content)) + content)


def test_a_report_has_the_shapes_of_the_plan() -> None:
    algorithm = algorithms.make("mfpo", algorithms.config_class("mfpo")(), envs.make("CartPole-v1").spec, 3)
    steps, episodes = federation_round.count_steps(algorithm, 2), algorithm.plan.episodes
    report = {
        "returns": np.ones((steps, 1, episodes), np.float32),
        "lengths": np.ones((steps, 1, episodes), np.int32),
        "metrics/entropy": np.full((steps, 1), np.nan, np.float32),
    }
    log = wire.report_of(wire.entries_of(report), algorithm, 2, "It")
    assert log is not None and log.metrics["entropy"].shape == (steps, 1) and int(log.lengths.sum()) == steps * episodes
    assert wire.report_of({}, algorithm, 2, "It") is None
    for name, array, sentence in (
        ("returns", report["returns"][:, :, 1:], "is needed"),
        ("lengths", -report["lengths"], "less than no steps"),
        ("secrets", report["returns"], "'secrets'"),
        ("metrics/round", report["metrics/entropy"], "'metrics/round'"),
        ("metrics/evaluation_mean", report["metrics/entropy"], "'metrics/evaluation_mean'"),
    ):
        with pytest.raises(MessageRefused, match=sentence):
            wire.report_of(wire.entries_of({**report, name: array}), algorithm, 2, "It")
