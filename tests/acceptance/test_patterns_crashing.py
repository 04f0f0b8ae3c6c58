"""Patterns that leave something running, add to it or take it away: the same, wherever their worker is killed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.acceptance.manual_tasks import task

from stepwell.flow import (
    cancel_scope,
    choice,
    deferred,
    define,
    each,
    graph,
    log,
    loop,
    otherwise,
    parallel,
    scope,
    set_variables,
    when,
)
from stepwell.testing import crash_everywhere

ADDING = loop(
    deferred({"add": each(task("A"), items=["{{ item }}"], join="none", name="one"), "close": set_variables({"is_closed": True})}),
    until="variables.is_closed",
    max_iterations=9,
)
COUNTING = each(
    task("vote"),
    set_variables({"votes": "{{ variables.votes + 1 }}"}, name="count"),
    choice(when("variables.votes >= 2", cancel_scope("voting")), otherwise(log("more"))),
    count=3,
    concurrency=2,
)
PATTERNS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "9 discriminator": (loop(parallel(task("A"), task("B"), join="discriminator"), task("C"), count=2), {}, "ACBACB"),
    "15 instances that are added": (scope(ADDING), {"is_closed": False}, "add add A add A close A"),
    "28 blocking discriminator": (
        loop(scope(parallel(task("A"), task("B"), join="discriminator"), task("C")), count=2),
        {},
        "ACBBCA",
    ),
    "32 partial join": (parallel(task("A"), task("B"), task("C"), join=2, merge="list"), {}, "CA"),
    "36 instances until it is enough": (scope(COUNTING, name="voting"), {"votes": 0}, "vote vote"),
    "37 graph": (
        graph({each: task(each) for each in "ABCD"}, [("A", "B", "true"), ("A", "C", "variables.n > 1"), ("B", "D"), ("C", "D")]),
        {"n": 1},
        "ABD",
    ),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_ends_the_same_wherever_its_worker_is_killed(name: str) -> None:
    """T30: before and after each commit."""
    node, variables, sent = PATTERNS[name]
    definition = define("pattern", node, variables=variables)
    signals = [(signal, None) for signal in (sent.split() if " " in sent else sent)]
    report = crash_everywhere(definition, signals=signals)
    assert report.crashes >= 4
    assert not str(report.result).startswith("execution"), "it was to end well"
