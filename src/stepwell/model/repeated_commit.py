"""Decide whether a commit id that landed before was used again for the same changes, or for others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from stepwell.model.draft import Draft, Planned
from stepwell.model.mutation import AddToken, Create, MigrateState, Mutation, UpdateToken, decode_mutations, encode_mutations
from stepwell.model.record import decode_metadata, encode_record

__all__ = ["Computed", "is_repetition"]


class Computed:
    """A change that a function works out at the commit, on the state as the earlier changes leave it.

    A retry of a commit that landed works out another result, on a newer state. It is the same change if it is of the same kind, for
    the same token.
    """

    def __init__(self, name: str, kind: type[Mutation], make: Callable[[Draft], Mutation], token_id: str | None = None) -> None:
        self.__name__, self.kind, self._make, self._token_id = name, kind, make, token_id

    def __call__(self, draft: Draft) -> Mutation:
        return self._make(draft)

    def may_have_given(self, mutation: Mutation) -> bool:
        """Return whether a stored mutation can be the result of this change."""
        return type(mutation) is self.kind and self._token_id == _token_of(mutation)


def _token_of(mutation: Mutation) -> str | None:
    return mutation.token_id if isinstance(mutation, AddToken | UpdateToken) else None


def is_repetition(batch: Sequence[Planned], body: bytes) -> bool:
    """Return whether a batch makes the changes of a stored commit.

    - ``batch``: the changes of the commit that uses the id again.
    - ``body``: the mutations of the commit that landed, as they are stored.
    """
    stored = decode_mutations(body)
    if stored and isinstance(stored[0], MigrateState):  # it came with the first try, and is no change of the caller's
        stored = stored[1:]
    return len(batch) == len(stored) and all(map(_is_same, batch, stored))


def _is_same(change: Planned, stored: Mutation) -> bool:
    if isinstance(change, Computed):
        return change.may_have_given(stored)
    if callable(change):  # refused arguments: no commit with them can have landed
        return False
    if isinstance(change, Create) and isinstance(stored, Create):
        return _timeless(change) == _timeless(stored)
    return encode_mutations([change]) == encode_mutations([stored])


def _timeless(creation: Create) -> tuple[bytes, bytes]:
    """Return a creation without the moment and the trace id, which are others in each try."""
    identity = msgspec.to_builtins(decode_metadata(bytes(creation.metadata)))
    del identity["started_at"], identity["trace_id"]
    identity.pop("salt", None)
    return encode_record(identity), bytes(creation.context)
