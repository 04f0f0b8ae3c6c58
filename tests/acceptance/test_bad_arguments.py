"""Arguments of the wrong kind: refused with the same typed error on every face, before anything is written or locked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepwell import InvalidInput, Stepwell, verify_proof

CALLS: dict[str, Callable[[Any], object]] = {
    "several keys as one text": lambda well: well.state.globals.get_many("abc"),
    "several keys as a number": lambda well: well.state.globals.get_many(5),
    "delete several keys as one text": lambda well: well.state.globals.delete_many("kept"),
    "delete no keys": lambda well: well.state.globals.delete_many(None),
    "values as a list": lambda well: well.state.globals.set_many(["kept"]),
    "values as nothing": lambda well: well.state.globals.set_many(None),
    "sliding as a text": lambda well: well.state.globals.set("kept", 2, ttl=60, sliding="yes"),
    "a scope as a text": lambda well: well.state.at("global"),
    "copy to a text": lambda well: well.state.globals.copy("kept", "other", scope="global"),
    "a transaction on a text": lambda well: well.transaction("run").state("global"),
    "under no lock": lambda well: well.transaction("run", lock="door"),
    "state under no lock": lambda well: well.state.transaction(lock=5),
    "a conversation under no lock": lambda well: well.conversations.set("c", {}, lock="door"),
    "a turn without a function": lambda well: well.conversations.turn("c", None),
    "turns up to a text": lambda well: well.conversations.history("c", limit="all"),
    "turns up to less than none": lambda well: well.conversations.history("c", limit=-1),
    "an anchor that is none": lambda well: well.verify("run", anchors=["receipt"]),
    "anchors that are none": lambda well: well.verify("run", anchors=5),
    "an archive in a number": lambda well: well.archive("run", 5),
    "a page after a text": lambda well: well.executions.list(after="run"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_argument_of_the_wrong_kind_is_refused(well: Stepwell, call: Callable[[Any], object]) -> None:
    well.create("run")
    well.state.globals.set("kept", 1)
    with pytest.raises(InvalidInput) as caught:
        call(well)
    assert caught.value.code == "SW-101"
    assert well.state.globals.all() == {"kept": 1}
    assert well.load("run").revision == 0
    well.conversations.lock("c").acquire()


def test_a_proof_is_bytes_and_so_is_its_key(well: Stepwell, tmp_path: Path) -> None:
    well.create("run")
    proof: Any = well.export("run")
    for data, key in ((proof.decode(), None), (tmp_path, None), (None, None), (proof, "key")):
        with pytest.raises(InvalidInput, match="bytes"):
            verify_proof(data, key=key)
