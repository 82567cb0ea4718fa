"""Pytrees of arrays <-> files in the safetensors format, with metadata and a checksum over both. Never pickle.

The trees hold plain arrays only: no PRNG keys (randomness is addressed by seed and round, so none has to be stored).
"""

import hashlib
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from mfpo.types import PyTree

KEY = (
    "mfpo"  # the only metadata entry: safetensors writes several in random order, and equal trees would differ in bytes
)


TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip


class Damaged(Exception):
    """The bytes are not, or no longer, what was written. The message is the end of a sentence about the file."""


class Mismatch(Exception):
    """The tensors are sound but belong to something else. The message is the end of a sentence about the file."""


def pack(tree: PyTree, metadata: dict[str, Any]) -> list[memoryview]:
    """The parts of a file. The same tree and metadata always give the same bytes.

    The library would copy every tensor three times on its way to the disk, and a replay may fill half of the memory: so
    the header is written here (a length, then JSON), and what follows are the arrays where they are.
    """
    tensors = {name: np.asarray(leaf, order="C") for name, leaf in named_leaves(tree)}
    note = {"metadata": metadata, "sha256": _checksum(tensors, metadata)}
    header: dict[str, Any] = {"__metadata__": {KEY: json.dumps(note, sort_keys=True)}}
    ordered, end = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name)), 0  # so that all are aligned
    for name in ordered:
        x, start = tensors[name], end
        end += x.nbytes
        header[name] = {"dtype": TYPES[x.dtype.name], "shape": list(x.shape), "data_offsets": [start, end]}
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % 8)
    return [memoryview(len(written).to_bytes(8, "little") + written), *(_bytes(tensors[name]) for name in ordered)]


def _bytes(x: np.ndarray) -> memoryview:
    return x.reshape(-1).view(np.uint8).data


def unpack(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors by name, and the metadata; both exactly as packed, or `Damaged`."""
    try:
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        note = json.loads(header["__metadata__"][KEY])
        metadata: dict[str, Any] = note["metadata"]
        expected = note["sha256"]
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Damaged("is cut off or was not written by mfpo") from error
    if _checksum(tensors, metadata) != expected:
        raise Damaged("does not match its checksum")
    return tensors, metadata


def fill(template: PyTree, tensors: dict[str, np.ndarray]) -> PyTree:
    """The tree of the template's structure with these tensors; names, shapes and types must agree.

    The arrays are not bound to a device: placing them is the engine's business, as it is for a fresh state.
    """
    named = named_leaves(template)
    names = {name for name, _ in named}
    if names != tensors.keys():
        odd = sorted(names ^ tensors.keys())[0]
        raise Mismatch(f"{'has an unexpected' if odd in tensors else 'lacks the'} tensor {odd!r}")
    leaves = []
    for name, leaf in named:
        tensor = tensors[name]
        if (tensor.shape, tensor.dtype) != (leaf.shape, leaf.dtype):
            found, wanted = describe(tensor), describe(leaf)
            raise Mismatch(f"holds {name!r} as {found} where {wanted} is needed")
        leaves.append(jnp.array(tensor))
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """Leaves with the names they have in a file or a message."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in paths]
    assert len({name for name, _ in named}) == len(named), "two leaves of the tree have the same name"
    return named


def describe(array: Any) -> str:
    """Type and shape, for people."""
    return f"{np.dtype(array.dtype).name}{list(array.shape)}"


def _checksum(tensors: dict[str, np.ndarray], metadata: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"\n{name} {describe(tensors[name])}\n".encode())
        digest.update(_bytes(tensors[name]))
    return digest.hexdigest()
