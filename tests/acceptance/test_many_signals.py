"""A run hears the signal that it waits for, whatever else lies in its inbox."""

from __future__ import annotations

from typing import Any

import pytest

import stepwell
from stepwell import workflow
from stepwell.flow import define, signal
from stepwell.model.commit import StateBatch
from stepwell.runtime.inbox import SIGNAL, fresh_key, put
from stepwell.testing.conformance.samples import landed
from stepwell.testing.store_access import parts_of


@workflow(name="many.code")
async def code() -> Any:
    return await stepwell.wait_signal("go")


DECLARED = define("many.declared", signal("go"))


@pytest.mark.parametrize("flow", [code, DECLARED], ids=["function", "declared"])
def test_signal_behind_a_thousand_others_is_heard(well: Any, flow: Any) -> None:
    run = well.start(flow)
    others = (put(run.execution_id, "default", SIGNAL, "other", number, fresh_key(f"{number:032x}")) for number in range(1_005))
    landed(parts_of(well).group.write(StateBatch(tuple(others))))
    run.signal("go", "now")
    assert run.result(20) == "now"
