"""Cancel scopes: regions that are cancelled as one, with everything inside and nothing else."""

from __future__ import annotations

import pytest
from tests.unit.sample import Chain, refused

from stepwell.model.record import (
    CancelScope,
    Presence,
)


def test_scope_is_entered_and_left() -> None:
    chain = Chain()
    chain.change(lambda tx: (tx.enter_scope("s"), tx.enter_scope("inner", parent="s")))
    assert chain.view.scopes["inner"] == CancelScope("inner", "s")
    chain.change(lambda tx: (tx.exit_scope("inner"), tx.exit_scope("s")))
    assert set(chain.view.scopes) == {"root"}


def test_scope_ids_are_unique_and_must_exist() -> None:
    chain = Chain()
    chain.change(lambda tx: tx.enter_scope("s"))
    refused(chain, lambda tx: tx.enter_scope("s"))
    refused(chain, lambda tx: tx.enter_scope("root"))
    refused(chain, lambda tx: tx.enter_scope("t", parent="nowhere"))
    refused(chain, lambda tx: tx.enter_scope("t", parent="t"))
    refused(chain, lambda tx: tx.exit_scope("nowhere"))
    refused(chain, lambda tx: tx.exit_scope("root"))
    refused(chain, lambda tx: tx.cancel_scope("nowhere"))


def test_scope_with_occupants_is_not_left() -> None:
    chain = Chain()
    chain.change(lambda tx: (tx.enter_scope("s"), tx.enter_scope("inner", "s"), tx.add_token("t", node="n", scope="s")))
    assert "scope 'inner', token 't'" in str(refused(chain, lambda tx: tx.exit_scope("s")))
    refused(chain, lambda tx: (tx.exit_scope("inner"), tx.exit_scope("s")))
    chain.change(lambda tx: (tx.exit_scope("inner"), tx.remove_token("t"), tx.exit_scope("s")))


def test_occupants_that_came_or_went_in_the_batch_count() -> None:
    chain = Chain()
    refused(chain, lambda tx: (tx.enter_scope("s"), tx.add_token("t", node="n", scope="s"), tx.exit_scope("s")))
    chain.change(lambda tx: (tx.enter_scope("s"), tx.add_token("t", node="n", scope="s")))
    chain.change(lambda tx: (tx.update_token("t", lambda _: {"scope": "root"}), tx.exit_scope("s")))
    refused(chain, lambda tx: (tx.enter_scope("u"), tx.update_token("t", lambda _: {"scope": "u"}), tx.exit_scope("u")))


def nested() -> Chain:
    """root > a > (b > token 3, token 2); root > c > token 4; root > token 1."""
    chain = Chain()
    chain.change(
        lambda tx: (
            tx.enter_scope("a"),
            tx.enter_scope("b", "a"),
            tx.enter_scope("c"),
            tx.add_token("1", node="n"),
            tx.add_token("2", node="n", scope="a"),
            tx.add_token("3", node="n", scope="b"),
            tx.add_token("4", node="n", scope="c"),
        )
    )
    return chain


def cancelled(chain: Chain) -> set[str]:
    everything = {**chain.view.scopes, **chain.view.tokens}
    return {name for name, thing in everything.items() if thing.status is Presence.CANCELLED}


@pytest.mark.parametrize(
    ("scope", "gone"),
    [("b", {"b", "3"}), ("a", {"a", "b", "2", "3"}), ("c", {"c", "4"}), ("root", {"root", "a", "b", "c", "1", "2", "3", "4"})],
)
def test_cancelling_reaches_everything_inside_and_nothing_else(scope: str, gone: set[str]) -> None:
    chain = nested()
    chain.change(lambda tx: tx.cancel_scope(scope))
    assert cancelled(chain) == gone


def test_cancelling_reaches_what_the_same_batch_put_inside() -> None:
    chain = nested()
    chain.change(
        lambda tx: (
            tx.enter_scope("d", "b"),
            tx.add_token("5", node="n", scope="d"),
            tx.update_token("1", lambda _: {"scope": "b"}),
            tx.update_token("3", lambda _: {"scope": "c"}),
            tx.cancel_scope("a"),
        )
    )
    assert cancelled(chain) == {"a", "b", "d", "1", "2", "5"}


def test_nothing_starts_or_moves_in_a_cancelled_scope() -> None:
    chain = nested()
    chain.change(lambda tx: tx.cancel_scope("a"))
    refused(chain, lambda tx: tx.add_token("5", node="n", scope="a"))
    refused(chain, lambda tx: tx.enter_scope("d", "b"))
    refused(chain, lambda tx: tx.update_token("1", lambda _: {"scope": "b"}))
    assert "late result" in str(refused(chain, lambda tx: tx.update_token("3", lambda _: {"value": "late"})))


def test_cancelled_scope_can_be_cleared_away_and_cancelled_again() -> None:
    chain = nested()
    chain.change(lambda tx: tx.cancel_scope("a"))
    chain.change(lambda tx: tx.cancel_scope("a"))
    chain.change(lambda tx: (tx.remove_token("3"), tx.exit_scope("b"), tx.remove_token("2"), tx.exit_scope("a")))
    assert set(chain.view.scopes) == {"root", "c"}
