"""What joins and loops remember of their order, and where a loop's wait ends."""

from __future__ import annotations

from tests.unit.kernel.driver import Driver

from stepwell.flow import call, define, loop, parallel


def test_winner_of_a_join_is_the_first_that_ended_though_the_run_was_taken_up_again() -> None:
    driver = Driver(define("w", parallel(branches={name: call(name, name) for name in "abc"}, join=3, merge="winner")))
    for name in "ba":
        driver.answer(name)
        driver.advance(1)
    driver.restart()
    assert driver.go().output == "b"


def test_loop_waits_between_its_rounds_and_not_after_the_last() -> None:
    driver = Driver(define("w", loop(call("s", 1), count=2, delay="10s"), call("after", 2)))
    driver.answer()
    assert driver.waiting == []
    driver.advance(10)
    driver.answer()
    assert [asked.key for asked in driver.waiting] == ["after"]
