import pytest

from mfpo import errors
from mfpo.errors import MfpoError, MissingExtra, did_you_mean

NAMES = ["CartPole-v1", "Pendulum-v1", "mfpo"]


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("CartPol-v1", "CartPole-v1"), ("cartpole-v1", "CartPole-v1"), ("PENDULUM", "Pendulum-v1"), ("mpfo", "mfpo")],
)
def test_the_nearest_name_is_suggested_whatever_the_case(given: str, nearest: str) -> None:
    assert did_you_mean(given, NAMES) == f"Did you mean {nearest}?"


def test_two_near_names_are_both_suggested() -> None:
    assert did_you_mean("fed_a", ["fed_b", "fed_c", "zzz"]) in (
        "Did you mean fed_b or fed_c?",
        "Did you mean fed_c or fed_b?",
    )


def test_far_from_everything_all_are_listed_in_order() -> None:
    assert did_you_mean("x", reversed(NAMES)) == "Possible: CartPole-v1, Pendulum-v1, mfpo."


def test_names_may_come_from_any_iterable() -> None:
    assert did_you_mean("mfp", {"mfpo": 1}) == "Did you mean mfpo?"
    assert did_you_mean("mfp", iter(["mfpo"])) == "Did you mean mfpo?"


def test_every_error_can_be_caught_as_one() -> None:
    kinds = [x for x in vars(errors).values() if isinstance(x, type) and issubclass(x, Exception)]
    assert len(kinds) >= 7
    assert all(issubclass(kind, MfpoError) for kind in kinds)
    assert not any(issubclass(MfpoError, kind) for kind in kinds if kind is not MfpoError)


def test_missing_extra_gives_the_command() -> None:
    message = str(MissingExtra("Plotting", "plot"))
    assert message == "Plotting needs an optional package; install it with: pip install 'mfpo[plot]'"


def test_a_failed_step_is_not_a_divergence() -> None:
    """Advice about stepsizes belongs to the latter alone."""
    assert not issubclass(errors.StepFailed, errors.Diverged)
