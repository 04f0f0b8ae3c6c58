"""How far a run is: loops and instances count with their rounds, and it never goes back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.kernel.driver import Driver
from tests.unit.kernel.test_properties import STEPS, trees, uniquely

from stepwell.flow import call, choice, deferred, define, each, graph, loop, otherwise, scope, sequence, throw, when
from stepwell.flow.definition.builder import Nodelike
from stepwell.runtime.progress import Estimate, Progress, estimate_of, progress_of


class Watched(Driver):
    """Looks at the progress after every event."""

    def feed(self, event: Any) -> Any:
        came = super().feed(event)
        self.seen = [*getattr(self, "seen", []), self.estimate]
        return came

    @property
    def progress(self) -> Progress:
        return progress_of(self.view, self.plan)

    @property
    def estimate(self) -> Estimate:
        live = [token for key, token in self.view.tokens.items() if key != "root" and token.value.get("slot") != "undo"]
        return estimate_of(self.plan, self.view.steps, [token for token in live if "at" in token.value], self.view.loops)


def watch(*parts: Nodelike, value: Any = None) -> Watched:
    return Watched(define("w", *parts), value)


def counts(driver: Watched) -> tuple[int, int | None, float | None]:
    told = driver.progress
    return told.done, told.total, told.percent


def answer(driver: Watched, times: int) -> Watched:
    for _ in range(times):
        driver.answer()
    return driver


def test_loop_counts_with_its_rounds_once_it_has_begun() -> None:
    driver = watch("a", loop("b", items="{{ trigger.input }}"), value=[1, 2, 3, 4])
    assert counts(driver) == (0, 2, 0.0), "how many rounds there will be is not known yet"
    assert counts(answer(driver, 1)) == (1, 5, 50.0)
    assert counts(answer(driver, 2)) == (3, 5, 75.0)
    assert counts(answer(driver, 1)) == (4, 5, 87.5)


def test_loop_whose_rounds_are_written_down_counts_with_them_before() -> None:
    assert watch(loop(sequence("a", "b"), count=3)).progress.total == 6
    assert watch("x", each("a", items=[1, 2, 3, 4])).progress.total == 5
    assert watch("x", loop("a", range=(10, 0, -3))).progress.total == 5


def test_instances_count_with_their_number_whichever_comes_first() -> None:
    driver = watch(each(sequence("a", "b"), items="{{ trigger.input }}", concurrency=2), value=[1, 2, 3, 4, 5])
    assert counts(driver) == (0, 10, 0.0)
    assert counts(answer(driver, 3)) == (3, 10, 30.0)
    assert counts(answer(driver, 6)) == (9, 10, 90.0)


def test_loops_inside_of_loops_count_with_the_rounds_that_are_known() -> None:
    driver = watch(loop(loop("a", count="{{ loops.outer.current_index + 1 }}", name="inner"), count=3, name="outer"))
    assert driver.progress.total == 3
    assert counts(answer(driver, 1)) == (1, 4, 33.3)
    assert counts(answer(driver, 1)) == (2, 4, 50.0)
    assert counts(answer(driver, 2)) == (4, 6, 77.8)


def test_loop_without_a_number_of_rounds_comes_nearer_to_its_end_with_each() -> None:
    driver = watch(loop("a", until="false", max_iterations=50), "z")
    percents = [answer(driver, 1).progress.percent for _ in range(10)]
    assert percents == sorted(percents)
    assert len(set(percents)) == 10
    assert percents[-1] < 50, "what comes after it has not begun"


def test_branches_that_were_not_chosen_do_not_count() -> None:
    driver = watch("a", choice(when("trigger.input", sequence("b", "c", "d")), otherwise("e")), "f", value=False)
    assert counts(driver) == (0, 5, 0.0), "of branches the longest counts until one is chosen"
    assert counts(answer(driver, 1)) == (1, 3, 20.0)
    assert counts(answer(driver, 1)) == (2, 3, 80.0)


def test_what_never_began_and_was_left_behind_does_not_count() -> None:
    driver = watch(scope(sequence("a", "b", "c"), timeout="5s"), "d")
    driver.advance(5)
    assert counts(driver) == (1, 2, 75.0)  # a is recorded as cancelled
    driver = watch(deferred({"yes": "a", "no": sequence("b", "c")}), "d")
    driver.signal("yes")
    assert counts(answer(driver, 1)) == (1, 2, 66.7)


def test_nodes_of_a_graph_that_are_skipped_are_over() -> None:
    arrows = [("a", "b", "1 == 1"), ("a", "c", "1 == 2")]
    driver = watch(graph({"a": call("a"), "b": call("b"), "c": call("c")}, arrows))
    assert counts(answer(driver, 1)) == (2, 3, 66.7)


def test_what_undoes_is_no_part_of_the_way() -> None:
    driver = watch(call("a", compensate="undo"), throw("no"))
    answer(driver, 1)
    assert [asked.key for asked in driver.waiting] != []
    assert driver.progress.total == 2


def test_run_that_failed_in_a_loop_keeps_what_it_had() -> None:
    driver = Watched(define("w", loop("a", items="{{ trigger.input }}")), [1, 2, 3, 4], {"a": lambda item: 1 // (3 - item)})
    driver.go()
    assert driver.end is not None
    assert counts(driver) == (2, 4, 50.0), "what failed is not done"


def test_function_has_no_end_that_is_known() -> None:
    told = progress_of(watch("a").view, None)
    assert (told.percent, told.total) == (None, None)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(tree=trees, seed=st.integers(0, 2**32), flag=st.booleans())
def test_progress_never_goes_back_and_ends_with_nothing_left(tree: Any, seed: int, flag: bool) -> None:
    driver = Watched(define("w", uniquely(tree, [0])), flag, STEPS, seed=seed)
    driver.go()
    *before, last = driver.seen
    assert [each.share for each in before] == sorted(each.share for each in before)
    assert [each.done for each in before] == sorted(each.done for each in before)
    assert all(0 <= each.share <= 1 and each.left >= 0 for each in driver.seen)
    if driver.end is not None and driver.end.status == "COMPLETED":
        assert last.left == 0
        assert last.share == pytest.approx(1)
