"""How cancel scopes end early: what they listen for from their first moment, and what it means if undoing does not work."""

from __future__ import annotations

from typing import Any

from tests.unit.kernel.driver import Driver

from stepwell.flow import call, define, scope, sequence, signal


def boom(_: Any) -> Any:
    raise ValueError("boom")


def test_scope_hears_its_signal_from_the_moment_it_begins() -> None:
    driver = Driver(define("w", scope("slow", cancel_on="stop"), call("after", 2)))
    driver.signal("stop")
    assert [asked.key for asked in driver.waiting] == ["after"]


def test_scope_hears_a_signal_that_came_before_it_began() -> None:
    driver = Driver(define("w", "first", scope("slow", cancel_on="stop"), call("after", 2)))
    driver.signal("stop")
    driver.answer()
    assert [asked.key for asked in driver.waiting] == ["after"]


def test_cancelled_scope_whose_undoing_failed_is_a_failure_though_it_may_be_cancelled() -> None:
    """Its effects remain, so the run cannot continue as if it had not run."""
    inside = sequence(call("book", compensate="unbook"), signal("never"))
    driver = Driver(define("w", scope(inside, timeout="1s", on_cancel="continue"), "after"), steps={"unbook": boom})
    driver.answer()
    driver.advance(1)
    driver.go()
    assert driver.error["kind"] == "TimeoutError"
    assert driver.keys == ["book", "unbook"]
    assert driver.is_clean()
