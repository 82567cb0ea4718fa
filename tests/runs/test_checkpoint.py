import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from mfpo.errors import RunError
from mfpo.runs import checkpoint, tensors
from mfpo.runs.checkpoint import Progress


class State(NamedTuple):
    server: Any
    agents: Any


def make_state(seed: int = 0, agents: int = 3) -> State:
    numbers = np.random.default_rng(seed).normal(size=(agents, 5)).astype(np.float32)
    numbers[0, :3] = np.nan, -np.inf, -0.0
    return State(
        server={"theta": [jnp.asarray(numbers.T), jnp.float32(seed)], "t": jnp.int32(7), "nothing": ()},
        agents={
            "seen": jnp.asarray(numbers > 0),
            "empty": jnp.zeros((agents, 0)),
            "bytes": jnp.arange(5, dtype=jnp.uint8),
        },
    )


def same_bits(a: Any, b: Any) -> bool:
    x, y = ([(leaf.shape, leaf.dtype, np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(tree)] for tree in (a, b))
    return str(jax.tree.structure(a)) == str(jax.tree.structure(b)) and x == y


def unexpected(sentence: str) -> None:
    raise AssertionError(sentence)


def save_rounds(folder: Path, *rounds: int) -> None:
    for number in rounds:
        checkpoint.save(folder, make_state(number), Progress(number, 10 * number, wall_seconds=0.1 * number))


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    save_rounds(tmp_path, 4)
    state, progress = checkpoint.load(tmp_path, make_state(0), unexpected)
    assert same_bits(state, make_state(4))
    assert progress == Progress(4, 40, wall_seconds=0.4)


def test_arrays_in_any_memory_order_are_stored_as_they_read() -> None:
    strided = np.arange(6, dtype=np.float32).reshape(2, 3).T
    named, _ = tensors.unpack(b"".join(tensors.pack({"a": strided}, {})))
    assert np.array_equal(named["a"], strided)


def test_equal_trees_give_equal_bytes() -> None:
    metadata = {"one": 1, "two": [2], "three": "3", "four": 4.5}
    turned = (dict(sorted(metadata.items(), reverse=i % 2 == 0)) for i in range(10))
    assert len({b"".join(tensors.pack(make_state(1), metadata)) for metadata in turned}) == 1


def test_a_file_is_what_the_library_reads_and_arrays_are_not_copied_on_their_way() -> None:
    names = [*tensors.TYPES, "float32"]
    tree = {f"{i}-{name}": np.arange(3).astype(name) for i, name in enumerate(names)} | {"one": np.float32(2)}
    parts = tensors.pack(tree, {"round": 1})
    read = safetensors.numpy.load(b"".join(parts))
    assert read.keys() == tree.keys()
    assert all(read[name].dtype == x.dtype and np.array_equal(read[name], x) for name, x in tree.items())
    large = np.zeros(1000)
    assert np.shares_memory(np.frombuffer(tensors.pack({"large": large}, {})[1]), large)


def test_without_checkpoints_the_fresh_state_is_used(tmp_path: Path) -> None:
    state, progress = checkpoint.load(tmp_path, make_state(0), unexpected)
    assert same_bits(state, make_state(0)) and progress == Progress()
    assert checkpoint.latest_round(tmp_path) == 0


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    save_rounds(tmp_path, 8, 9, 10, 11)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-000010.safetensors", "round-000011.safetensors"]
    assert checkpoint.latest_round(tmp_path) == 11


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "counter", "foreign"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, damage: str) -> None:
    save_rounds(tmp_path, 1, 2)
    newest = checkpoint.path_of(tmp_path, 2)
    content = newest.read_bytes()
    flipped = bytearray(content)
    flipped[-1] ^= 1
    newest.write_bytes(
        {
            "empty": b"",
            "cut": content[: len(content) // 2],
            "flipped": bytes(flipped),
            "counter": content.replace(b'wall_seconds\\": 0.2', b'wall_seconds\\": 0.3'),
            "foreign": b"this is not a checkpoint",
        }[damage]
    )
    assert newest.read_bytes() != content
    said: list[str] = []
    state, progress = checkpoint.load(tmp_path, make_state(0), said.append)
    assert same_bits(state, make_state(1)) and progress.round == 1
    assert len(said) == 1 and str(newest) in said[0] and "going back to the checkpoint of round 1" in said[0]


def test_two_damaged_checkpoints_mean_a_new_beginning_that_replaces_them(tmp_path: Path) -> None:
    save_rounds(tmp_path, 6, 7)
    for file in tmp_path.iterdir():
        file.write_bytes(b"")
    said: list[str] = []
    _, progress = checkpoint.load(tmp_path, make_state(0), said.append)
    assert progress == Progress() and "starting again from round 1" in said[-1]
    save_rounds(tmp_path, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["round-000001.safetensors"]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (make_state(0, agents=4), r"as float32\[5, 3\] where float32\[5, 4\] is needed"),
        (make_state(0)._replace(agents={}), "has an unexpected tensor 'agents/bytes'"),
        (make_state(0)._replace(server={**make_state(0).server, "u": jnp.zeros(2)}), "lacks the tensor 'server/u'"),
        (make_state(0)._replace(server={**make_state(0).server, "t": jnp.float32(0)}), "'server/t' as int32"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path, template: State, words: str) -> None:
    save_rounds(tmp_path, 3)
    with pytest.raises(RunError, match=words):
        checkpoint.load(tmp_path, template, unexpected)


def test_a_format_of_the_future_is_refused(tmp_path: Path) -> None:
    content = b"".join(tensors.pack(make_state(1), {"format": 99, "progress": Progress(1)._asdict()}))
    checkpoint.path_of(tmp_path, 1).write_bytes(content)
    with pytest.raises(RunError, match="format 99"):
        checkpoint.load(tmp_path, make_state(0), unexpected)


def test_metadata_is_readable_by_any_safetensors_reader(tmp_path: Path) -> None:
    from safetensors import safe_open

    save_rounds(tmp_path, 3)
    with safe_open(checkpoint.path_of(tmp_path, 3), "numpy") as file:
        assert json.loads(file.metadata()["mfpo"])["metadata"]["progress"]["round"] == 3
