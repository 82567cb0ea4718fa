"""A message between two processes of one machine: a line of JSON, then the bytes of its arrays. Never pickle.

Uses nothing but the standard library: the Flower app that carries messages starts anew for each of them.
"""

import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FRAME = "frame"  # the record, and its only array, that carries one through Flower
LARGEST = 2**31  # bytes of a frame
_LENGTHS = struct.Struct("!QI")  # of the whole frame after these two numbers, and of its header

Value = str | int | float | bool


class Entry(NamedTuple):
    """An array as it travels: in C order, little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


Entries = dict[str, Entry]


class Frame(NamedTuple):
    """What is said, by name, and groups of named arrays."""

    envelope: dict[str, Value]
    groups: dict[str, Entries]


def pack(frame: Frame) -> bytes:
    """The frame as bytes."""
    described = {
        group: [[name, entry.dtype, entry.shape, len(entry.data)] for name, entry in entries.items()]
        for group, entries in frame.groups.items()
    }
    header = json.dumps({"envelope": frame.envelope, "groups": described}).encode()
    data = b"".join(entry.data for entries in frame.groups.values() for entry in entries.values())
    return _LENGTHS.pack(len(header) + len(data), len(header)) + header + data


def unpack(content: bytes) -> Frame:
    """The frame that was packed, or ValueError. What its arrays hold is for the receiver to judge."""
    try:
        whole, length = _LENGTHS.unpack_from(content)
        rest = memoryview(content)[_LENGTHS.size :]
        if len(rest) != whole:
            raise ValueError("it is cut off")
        header = json.loads(bytes(rest[:length]))
        groups, start = {}, length
        for group, described in header["groups"].items():
            entries = {}
            for name, dtype, shape, size in described:
                entries[str(name)] = Entry(str(dtype), tuple(map(int, shape)), bytes(rest[start : start + size]))
                start += size
            groups[group] = entries
        if start != len(rest):
            raise ValueError("its parts do not add up to its length")
        envelope = dict(header["envelope"])
        if not all(isinstance(value, str | int | float | bool) for value in envelope.values()):
            raise ValueError("its envelope holds more than words and numbers")
        return Frame(envelope, groups)
    except (struct.error, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"it is not a frame ({error})") from error


def send(connection: socket.socket, frame: Frame) -> None:
    """Write a frame."""
    connection.sendall(pack(frame))


def receive(connection: socket.socket) -> Frame:
    """Read a frame; ValueError if it is none, or too large; ConnectionError if the other side is gone."""
    return unpack(_read_frame(connection))


def _read_frame(connection: socket.socket) -> bytes:
    start = _read(connection, _LENGTHS.size)
    whole = _LENGTHS.unpack(start)[0]
    if whole > LARGEST:
        raise ValueError(f"it has {whole} bytes, and {LARGEST} is the most")
    return start + _read(connection, whole)


def _read(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, 2**20))
        if not part:
            raise ConnectionError("the other side closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name for a socket that the system accepts: it takes about a hundred characters, and folders may be deep."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield str(path) if len(os.fsencode(path)) < 100 else f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def call(path: Path, frame: Frame, timeout: float) -> Frame:
    """Ask the process that listens at `path`, and wait for its answer."""
    return unpack(carry(path, pack(frame), timeout))


def carry(path: Path, content: bytes, timeout: float) -> bytes:
    """`call` for a frame that is packed, without a look at it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        with short_path(path) as name:
            connection.connect(name)
        connection.sendall(content)
        return _read_frame(connection)
