"""Any algorithm with another rule of aggregation, and with uploads refused that are not finite."""

import functools

import jax
import jax.numpy as jnp

from mfpo.errors import ConfigError
from mfpo.learning import aggregation, diagnostics, trees
from mfpo.types import Algorithm, Array, Key, Metrics, PyTree

OWN = "own"  # what the algorithm does by itself
RULES = (OWN, *aggregation.RULES)


@functools.lru_cache(maxsize=32)  # one value per setting, as for algorithms
def robust(algorithm: Algorithm, rule: str, agents: int, byzantine: int, asked: int | None = None) -> Algorithm:
    """The algorithm with an aggregation rule that withstands `byzantine` liars (0: as many as it can).

    If fewer of the agents are `asked` in a round, all of the liars may be among them.

    A rule makes one message of all: it is applied to every field of the uploads by itself, for fields differ in scale,
    and the algorithm then merges as if every agent had sent the result. Kept are those in the first field, which holds
    parameters or a gradient.
    """
    present = agents if asked is None else asked
    where = f"With {present} of {agents} agents asked in a round, the" if present < agents else "The"
    if rule == OWN and algorithm.withstands is not None:
        aggregation.check(f"{where} algorithm's own filter", algorithm.withstands(present), present, byzantine)
    if rule == OWN or (rule == "mean" and algorithm.withstands is None):
        return algorithm._replace(merge=functools.partial(_finite_merge, algorithm))
    assumed = 0
    if rule != "mean":
        most = aggregation.tolerated(rule, present)
        if most < 1:
            raise ConfigError(
                f"{where} aggregation rule {rule} cannot withstand a single liar among {present} agents; take more "
                "agents, or --aggregation mean."
            )
        aggregation.check(f"{where} aggregation rule {rule}", most, present, byzantine)
        assumed = byzantine or most
    combine = aggregation.make(rule, present, assumed, sigma=0.0)

    def merge(server: PyTree, uploads: PyTree, mask: Array, key: Key) -> tuple[PyTree, Metrics]:
        finite = aggregation.finite(uploads, mask)
        chosen = [combine(field, finite) if jax.tree.leaves(field) else (field, finite) for field in uploads]
        combined, kept = type(uploads)(*[field for field, _ in chosen]), chosen[0][1]
        same = jax.tree.map(lambda x, y: y.astype(x.dtype), uploads, combined)
        server, metrics = algorithm.merge(server, trees.repeat(same, agents), finite, key)
        own = {name: metrics[name] for name in metrics if name not in diagnostics.OF_UPLOADS}  # all merged are the same
        return server, own | {"rejected": jnp.sum(mask & ~finite), "kept": kept}

    return algorithm._replace(merge=merge)


def _finite_merge(
    algorithm: Algorithm, server: PyTree, uploads: PyTree, mask: Array, key: Key
) -> tuple[PyTree, Metrics]:
    finite = aggregation.finite(uploads, mask)
    server, metrics = algorithm.merge(server, uploads, finite, key)
    return server, {"kept": finite} | metrics | {"rejected": jnp.sum(mask & ~finite)}
