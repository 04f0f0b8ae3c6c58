"""Host tuning is opt-in: it changes settings of the process while it is entered, and a well changes none."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from stepwell import Stepwell, workflow
from stepwell.runtime.host_tuning import GC_THRESHOLD, SWITCH_INTERVAL_SECONDS, host_tuning

WAIT = 60
USUAL_THRESHOLD = (700, 10, 10)
USUAL_INTERVAL = 0.005


@workflow(name="tuning.settings")
async def settings() -> list[float]:
    return [gc.get_threshold()[0], sys.getswitchinterval()]


@pytest.fixture(autouse=True)
def _python_defaults() -> Iterator[None]:
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(*USUAL_THRESHOLD)
    sys.setswitchinterval(USUAL_INTERVAL)
    yield
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


def test_settings_change_inside_and_are_restored() -> None:
    with host_tuning():
        with host_tuning():
            assert gc.get_threshold() == (GC_THRESHOLD, 10, 10)
        assert gc.get_threshold() == (GC_THRESHOLD, 10, 10)
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_SECONDS)
    assert gc.get_threshold() == USUAL_THRESHOLD
    assert sys.getswitchinterval() == pytest.approx(USUAL_INTERVAL)


def test_settings_are_restored_after_an_error() -> None:
    with pytest.raises(KeyError), host_tuning():
        raise KeyError
    assert gc.get_threshold() == USUAL_THRESHOLD


def test_caller_chooses_other_values() -> None:
    with host_tuning(gc_threshold=10_000, switch_interval_seconds=0.002):
        assert gc.get_threshold() == (10_000, 10, 10)
        assert sys.getswitchinterval() == pytest.approx(0.002)


@pytest.mark.parametrize("threshold", [(2 * GC_THRESHOLD, 5, 5), (0, 10, 10)], ids=["larger", "disabled"])
def test_threshold_that_goes_further_stays(threshold: tuple[int, int, int]) -> None:
    gc.set_threshold(*threshold)
    with host_tuning():
        assert gc.get_threshold() == threshold
    assert gc.get_threshold() == threshold


def test_shorter_switch_interval_stays() -> None:
    sys.setswitchinterval(0.0005)
    with host_tuning():
        assert sys.getswitchinterval() == pytest.approx(0.0005)
    assert sys.getswitchinterval() == pytest.approx(0.0005)


def test_settings_changed_meanwhile_are_not_restored() -> None:
    with host_tuning():
        gc.set_threshold(1_000, 10, 10)
        sys.setswitchinterval(0.01)
    assert gc.get_threshold() == (1_000, 10, 10)
    assert sys.getswitchinterval() == pytest.approx(0.01)


def test_well_with_a_worker_changes_no_setting() -> None:
    with Stepwell("memory://") as well:
        told = [well.start(settings).result(WAIT), *(item.result(WAIT) for item in [well.enqueue(settings) for _ in range(20)])]
    assert told == [[USUAL_THRESHOLD[0], USUAL_INTERVAL]] * 21
