"""Agents that learn one after the other."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from mfpo.learning import trees
from mfpo.types import Array, PyTree

REPLAY = 2**26  # bytes; an agent of so many holds a replay


def in_turn(fn: Callable[..., tuple[PyTree, PyTree]], rows: PyTree, *given: PyTree) -> tuple[PyTree, PyTree]:
    """fn(row, *given) -> (row, result) for one row of the agents after the other: all rows anew, and all results.

    A row with a REPLAY takes the place of the old one: `lax.map` keeps all the old ones until the end. It copies less,
    though: learning Pong takes 5% longer without it.
    """
    n = jax.tree.leaves(rows)[0].shape[0]
    if trees.count_bytes(rows) < n * REPLAY:
        mapped: tuple[PyTree, PyTree] = jax.lax.map(lambda x: fn(*x), (rows, *given))
        return mapped

    def one(i: Any, rows: PyTree) -> tuple[PyTree, PyTree]:
        return fn(*jax.tree.map(lambda x: x[i], (rows, *given)))

    def body(i: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        done: tuple[PyTree, PyTree] = jax.tree.map(lambda x, y: x.at[i].set(y), carry, one(i, carry[0]))
        return done

    shapes = jax.eval_shape(lambda: one(0, rows)[1])
    results = jax.tree.map(lambda s: jnp.zeros((n, *s.shape), s.dtype), shapes)
    done: tuple[PyTree, PyTree] = jax.lax.fori_loop(0, n, body, (rows, results))
    return done
