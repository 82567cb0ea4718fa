"""Robust aggregation against NumPy, written another way, and the properties every rule must have."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo.errors import ConfigError
from mfpo.learning import aggregation
from mfpo.learning.aggregation import RULES, make

ROBUST = [name for name in RULES if name != "mean"]
N, F = 9, 3  # the most that Krum withstands
SIGMA = 1.5  # agents differ by less than 2 sigma, so that fedpg-br keeps all honest ones

every_rule = pytest.mark.parametrize("name", RULES)
robust_rules = pytest.mark.parametrize("name", ROBUST)


@functools.cache
def rule(name, agents=N, byzantine=None):
    byzantine = (0 if name == "mean" else F) if byzantine is None else byzantine
    return jax.jit(make(name, agents, byzantine, sigma=SIGMA, delta=0.6, trajectories=16))


def tree_of(matrix):
    """Seven numbers per agent, in pieces of different shapes."""
    matrix = jnp.asarray(matrix, jnp.float32)
    return {"a": matrix[:, :4].reshape(-1, 2, 2), "b": (matrix[:, 4], matrix[:, 5:])}


def vector_of(tree):
    return np.concatenate([np.ravel(tree["a"]), np.ravel(tree["b"][0]), np.ravel(tree["b"][1])])


def uploads(seed=0, agents=N, centre=2.0):
    return centre + 0.3 * np.random.default_rng(seed).normal(size=(agents, 7))


def aggregate(name, matrix, mask=None, **options):
    mask = np.ones(len(matrix), bool) if mask is None else np.asarray(mask)
    result, kept = rule(name, len(matrix), **options)(tree_of(matrix), jnp.asarray(mask))
    return vector_of(result), np.asarray(kept)


# the same in NumPy, for the rows of agents that count


def krum_scores(x, f):
    scores = []
    for i in range(len(x)):
        to_others = sorted(float(np.sum((x[i] - x[j]) ** 2)) for j in range(len(x)) if j != i)
        scores.append(sum(to_others[: len(x) - f - 2]))
    return np.array(scores)


def multi_krum(x, f):
    return x[np.argsort(krum_scores(x, f))[: len(x) - f - 2]].mean(axis=0)


def geometric_median(x, f):
    """By gradient descent with a shrinking step, which shares nothing with Weiszfeld's iteration."""
    z, best, least = x.mean(axis=0), None, np.inf
    for t in range(20000):
        difference = z - x
        length = np.linalg.norm(difference, axis=1, keepdims=True)
        if length.sum() < least:
            best, least = z, length.sum()
        z = z - 0.3 / (1 + t) ** 0.75 * np.mean(difference / length, axis=0)
    return best


def trimmed_mean(x, f):
    return np.array([np.mean(sorted(column)[f : len(x) - f]) for column in x.T])


def fedpg_br(x, f):
    n = len(x)

    def good(threshold):
        near = [[j for j in range(n) if math.dist(x[i], x[j]) <= threshold] for i in range(n)]
        voters = [i for i in range(n) if len(near[i]) > n / 2]
        centre = np.mean([x[i] for i in voters], axis=0)
        return near[min(voters, key=lambda i: math.dist(x[i], centre))]

    chosen = good(2 * SIGMA * math.sqrt(2 * math.log(2 * n / 0.6) / 16))
    if len(chosen) < (1 - F / N) * n:
        chosen = good(2 * SIGMA)
    return x[chosen].mean(axis=0)


REFERENCE = {
    "mean": lambda x, f: np.mean(x, axis=0),
    "median": lambda x, f: np.median(x, axis=0),
    "trimmed-mean": trimmed_mean,
    "krum": lambda x, f: x[np.argmin(krum_scores(x, f))],
    "multi-krum": multi_krum,
    "geometric-median": geometric_median,
    "fedpg-br": fedpg_br,
}


@every_rule
@pytest.mark.parametrize("absent", [[], [4], [0, 8]], ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_numpy_gives_the_same_for_those_who_answered(name, absent, seed):
    x = uploads(seed)
    mask = ~np.isin(np.arange(N), absent)
    found, kept = aggregate(name, x, mask)
    tolerance = 2e-3 if name == "geometric-median" else 1e-5
    np.testing.assert_allclose(found, REFERENCE[name](x[mask], F if name != "mean" else 0), atol=tolerance)
    assert not kept[~mask].any() and kept.any()


@every_rule
def test_the_order_of_the_agents_means_nothing(name):
    x, mask = uploads(), np.arange(N) != 5
    order = np.random.default_rng(3).permutation(N)
    (here, kept), (there, kept_) = aggregate(name, x, mask), aggregate(name, x[order], mask[order])
    np.testing.assert_allclose(here, there, atol=1e-5)
    assert np.array_equal(kept[order], kept_)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_of_two_nearest_to_each_other_krum_takes_the_one_nearer_to_the_rest(order):
    x = np.zeros((3, 7))
    x[:, 0] = [0.0, 1.0, 5.0]  # the first two score the same
    found, kept = aggregate("krum", x[list(order)], byzantine=0)
    assert found[0] == 1.0 and kept.sum() == 1


@every_rule
def test_when_all_agree_it_is_the_mean(name):
    one = uploads(4)[:1]
    found, kept = aggregate(name, np.repeat(one, N, axis=0))
    np.testing.assert_allclose(found, one[0], rtol=1e-6)
    assert kept.sum() == {"krum": 1, "multi-krum": N - F - 2}.get(name, N)


@robust_rules
@pytest.mark.parametrize("size", [1e9, -1e9, 1e30, 3.4e38])
@pytest.mark.parametrize("liars", [1, F])
def test_lies_of_any_size_do_not_move_robust_rules(name, size, liars):
    x = uploads()
    attacked = x.copy()
    attacked[:liars] = size
    found, _ = aggregate(name, attacked)
    assert np.abs(found - x[liars:].mean(axis=0)).max() < 0.6  # honest agents are 0.3 around 2
    assert np.abs(aggregate("mean", attacked)[0]).max() > 1e8


def test_the_filter_of_fedpg_br_drops_what_others_only_weaken():
    x = uploads()
    x[:F] = -2.5 * x[:F]
    found, kept = aggregate("fedpg-br", x)
    assert kept.tolist() == [False] * F + [True] * (N - F)
    np.testing.assert_allclose(found, x[F:].mean(axis=0), atol=1e-5)


@every_rule
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_upload_that_is_not_finite_is_dropped(name, bad):
    x, mask = uploads(), np.ones(N, bool)
    x[2, 3] = bad
    found, kept = aggregate(name, x, mask)
    expected, kept_ = aggregate(name, uploads(), np.arange(N) != 2)
    assert np.array_equal(found, expected) and np.array_equal(kept, kept_)
    assert not kept[2]


@every_rule
@pytest.mark.parametrize("junk", [0.0, 2.0, 1e9, np.nan])
def test_masked_agents_never_matter(name, junk):
    x, mask = uploads(), np.isin(np.arange(N), [1, 2, 4, 6, 7, 8])
    expected = aggregate(name, x, mask)
    x[~mask] = junk
    found = aggregate(name, x, mask)
    assert np.array_equal(found[0], expected[0]) and np.array_equal(found[1], expected[1])


@every_rule
def test_nobody_is_no_error(name):
    found, kept = aggregate(name, uploads(), np.zeros(N, bool))
    assert not kept.any() and np.array_equal(found, np.zeros(7))


@every_rule
def test_a_single_answer_is_the_answer(name):
    x = uploads()
    found, kept = aggregate(name, x, np.arange(N) == 6)
    np.testing.assert_allclose(found, x[6], rtol=1e-6)
    assert np.flatnonzero(kept).tolist() == [6]


def test_finite_looks_at_every_piece():
    x = uploads()
    x[1, 0], x[3, 4], x[5, 6] = np.nan, np.inf, -np.inf
    mask = jnp.asarray(np.arange(N) != 8)
    assert aggregation.finite(tree_of(x), mask).tolist() == [i not in (1, 3, 5, 8) for i in range(N)]


def test_the_filter_of_fedpg_br_by_hand():
    """On a line, sigma = 1: V = 2 ln(2·5/0.5) = 5.99, so with B = 24 the first threshold is 2 sqrt(V/24) = 0.9993."""
    threshold = 2 * math.sqrt(2 * math.log(2 * 5 / 0.5) / 24)
    assert 0.99 < threshold < 1.0
    program = jax.jit(aggregation.fedpg_br, static_argnames=("sigma",))

    def kept(points, alpha, b=24):
        x = jnp.array(points)[:, None]
        return program(x, jnp.ones(len(points), bool), alpha, sigma=1.0, delta=0.5, trajectories=b)

    # 0.0, 0.5 and 0.9 have three within 0.9993 and vote; 0.5 is nearest to their mean, and 1.6 is too far from it
    value, who = kept([0.0, 0.5, 0.9, 1.6, 7.0], alpha=0.4)
    assert who.tolist() == [True, True, True, False, False]
    assert float(value[0]) == pytest.approx((0.0 + 0.5 + 0.9) / 3, rel=1e-6)
    # if all but one must be honest, three are too few: with 2 sigma everyone but 7.0 votes, and 0.9 is their median
    value, who = kept([0.0, 0.5, 0.9, 1.6, 7.0], alpha=0.2)
    assert who.tolist() == [True, True, True, True, False]
    assert float(value[0]) == pytest.approx(0.75, rel=1e-6)
    # fewer trajectories, more noise: the first threshold is 2 sqrt(V / 6) = 1.9985 and suffices
    assert kept([0.0, 0.5, 0.9, 1.6, 7.0], alpha=0.2, b=6)[1].tolist() == [True, True, True, True, False]
    # nobody has company within 2 sigma: the one nearest to its second neighbour remains, with its kind
    value, who = kept([0.0, 10.0, 15.0, 19.0, 40.0], alpha=0.4)
    assert who.tolist() == [False, False, True, False, False] and float(value[0]) == 15.0


def test_the_filter_of_fedpg_br_with_the_absent_counts_only_those_who_answered():
    """n = 3 of 5: V = 2 ln(2·3/0.5) = 4.97 and two are more than half of them."""
    x = jnp.array([[0.0], [50.0], [0.5], [50.0], [9.0]])
    mask = jnp.array([True, False, True, False, True])
    value, kept = aggregation.fedpg_br(x, mask, alpha=0.4, sigma=0.5, delta=0.5, trajectories=16)
    assert kept.tolist() == [True, False, True, False, False]
    assert float(value[0]) == 0.25


@pytest.mark.parametrize(
    ("name", "agents", "most"),
    [
        ("mean", 100, 0), ("median", 10, 4), ("median", 11, 5), ("trimmed-mean", 4, 1), ("geometric-median", 2, 0),
        ("krum", 10, 3), ("krum", 9, 3), ("krum", 8, 2), ("krum", 2, 0), ("multi-krum", 5, 1), ("fedpg-br", 10, 4),
    ],
)  # fmt: skip
def test_more_byzantine_agents_than_a_rule_withstands_are_refused(name, agents, most):
    make(name, agents, most)
    with pytest.raises(ConfigError, match=f"{name} withstands at most {most} .* of {agents}, but {most + 1} are"):
        make(name, agents, most + 1)


def test_an_unknown_rule_is_refused():
    with pytest.raises(ConfigError, match="no aggregation rule 'medain'. Did you mean median?"):
        make("medain", 4)


def test_trimming_more_than_answered_leaves_the_median():
    x = uploads()
    mask = np.isin(np.arange(N), [0, 3, 4, 7])
    np.testing.assert_allclose(aggregate("trimmed-mean", x, mask)[0], np.median(x[mask], axis=0), atol=1e-6)


def test_the_geometric_median_does_not_get_stuck_at_a_vector():
    """The coordinate-wise median is a vector of the five, but not the point with the least sum of distances."""
    x = np.array([[0, 0], [10, 1], [1, 10], [1.5, 1.5], [9, 9.0]])
    found, _ = aggregation.geometric_median(jnp.asarray(x, jnp.float32), jnp.ones(5, bool))
    start, _ = aggregation.median(jnp.asarray(x, jnp.float32), jnp.ones(5, bool))
    assert start.tolist() in x.tolist()

    def total(z):
        return np.linalg.norm(x - np.asarray(z), axis=1).sum()

    grid = min(total((a, b)) for a in np.linspace(0, 10, 201) for b in np.linspace(0, 10, 201))
    assert total(found) <= grid + 1e-3 < total(start) - 0.01
