"""Limits: numbers that say how much is too much."""

from __future__ import annotations

import pytest

from stepwell import InvalidInput, Limits


def test_defaults_are_the_documented_ones() -> None:
    limits = Limits()
    assert (limits.value_bytes, limits.key_bytes, limits.depth, limits.scope_keys) == (262_144, 512, 64, 10_000)


@pytest.mark.parametrize("name", Limits.__struct_fields__)
@pytest.mark.parametrize("number", [0, -1, "1", 1.5, True, None])
def test_a_limit_is_at_least_one(name: str, number: int) -> None:
    with pytest.raises(InvalidInput, match=rf"Limits\({name}=\.\.\.\) is a whole number, 1 or more"):
        Limits(**{name: number})


def test_limits_are_given_by_name_and_do_not_change() -> None:
    with pytest.raises(TypeError):
        Limits(5)
    with pytest.raises(AttributeError):
        Limits().depth = 3
