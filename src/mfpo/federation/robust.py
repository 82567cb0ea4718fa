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
def robust(algorithm: Algorithm, rule: str, agents: int, byzantine: int) -> Algorithm:
    """The algorithm with an aggregation rule that withstands `byzantine` liars (0: as many as it can).

    A rule makes one message of all: it is applied to every field of the uploads by itself, for fields differ in scale,
    and the algorithm then merges as if every agent had sent the result. Kept are those in the first field, which holds
    parameters or a gradient.
    """
    if rule in (OWN, "mean"):
        return algorithm._replace(merge=functools.partial(_finite_merge, algorithm))
    assumed = byzantine or aggregation.tolerated(rule, agents)
    if assumed < 1:
        raise ConfigError(
            f"The aggregation rule {rule} cannot withstand a single liar among {agents} agents; take more agents, or "
            "--aggregation mean."
        )
    combine = aggregation.make(rule, agents, assumed, sigma=0.0)

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
