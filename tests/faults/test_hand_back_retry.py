"""How long a hand-back is retried: while the store may come back, and not once it is damaged for good."""

from __future__ import annotations

import asyncio
from math import inf

import pytest

from stepwell import CommitUnknown, Corrupted, StoreForeign, StoreNewer, StoreUnavailable, StoreUnsafe
from stepwell.runtime.shutdown import HandBackRetry


def tries_until_success_or(error: Exception) -> int:
    """How often a hand-back is tried that meets an error twice, and then succeeds."""
    tries = 0

    async def hand_back() -> None:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise error

    async def keep_trying() -> None:
        await HandBackRetry().keep_trying(hand_back, lambda: inf)

    if isinstance(error, Corrupted | StoreForeign | StoreNewer | StoreUnsafe):
        with pytest.raises(type(error)):
            asyncio.run(keep_trying())
    else:
        asyncio.run(keep_trying())
    return tries


@pytest.mark.parametrize("error", [StoreUnavailable(), CommitUnknown()])
def test_hand_back_is_retried_while_its_store_is_away(error: Exception) -> None:
    assert tries_until_success_or(error) == 3


@pytest.mark.parametrize("error", [Corrupted(), StoreForeign(), StoreNewer(), StoreUnsafe()])
def test_hand_back_is_not_retried_on_a_store_that_is_damaged_for_good(error: Exception) -> None:
    assert tries_until_success_or(error) == 1
