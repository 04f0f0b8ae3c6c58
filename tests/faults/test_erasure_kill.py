"""An erasure or a rotation of keys that is killed at any step: the next call finishes it, and nothing is half erased (T52)."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest
from tests.support.store_urls import on_servers, shared_url

from stepwell import Conflict, KeyRing, NotFound, Stepwell, ValueErased

__all__ = ["shared_url"]

WAIT = 60
RING = KeyRing.of({"k1": b"1" * 32, "k2": b"2" * 32}, "k1")
TURNED = KeyRing.of({"k1": b"1" * 32, "k2": b"2" * 32})
RUNS = [f"run-{number}" for number in range(5)]

PROGRAM = textwrap.dedent("""
    import sys
    from tests.faults.hooks import at, kill_this_process
    from stepwell import KeyRing, Stepwell
    from stepwell.fault_points import armed
    from stepwell.maintenance import erasure

    erasure._BATCH = 2
    act, url, point, number = sys.argv[1:]
    active = "k2" if act == "rotate_keys" else "k1"

    ring = KeyRing.of({"k1": b"1" * 32, "k2": b"2" * 32}, active)
    with Stepwell(url, worker=False, encryption=ring) as well, armed(at(point, int(number), kill_this_process)):
        print(well.rotate_keys() if act == "rotate_keys" else well.erase("user:42", cancel=True))
""")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=WAIT, check=False)


@pytest.fixture
def url(shared_url: str) -> str:
    url = shared_url
    with Stepwell(url, worker=False, encryption=RING) as well:
        for name in RUNS:
            well.create(name, context={"name": name}, subject="user:42")
        well.create("other", context={"name": "other"}, subject="user:7")
        profile = well.state.custom("profile")
        profile.hold_data_of("user:42")
        profile.set("name", "Ada")
    return url


def is_erased(well: Stepwell, name: str) -> bool:
    try:
        well.load(name)
    except ValueErased:
        return True
    return False


@pytest.mark.parametrize(
    ("point", "number", "is_destroyed"),
    [
        ("erasure.marked", 1, False),
        ("store.before_commit", 3, False),
        ("erasure.batch_written", 1, False),
        ("erasure.batch_written", 3, False),
        ("erasure.destroyed", 1, True),
    ],
)
def test_killed_erasure_erases_all_or_is_finished_by_the_next_call(url: str, point: str, number: int, is_destroyed: bool) -> None:
    killed = run("erase", url, point, str(number))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with Stepwell(url, worker=False, encryption=RING) as well:
        assert {is_erased(well, name) for name in RUNS} == {is_destroyed}
        assert all(well.verify(name).ok for name in RUNS)
        if not is_destroyed:
            with pytest.raises(Conflict, match="being erased"):
                well.create("late", subject="user:42")
            well.erase("user:42", cancel=True)
        (receipt,) = well.erasures()
        assert (receipt.runs, receipt.scopes) == (5, 1)
        assert all(is_erased(well, name) and well.verify(name).ok for name in RUNS)
        with pytest.raises(ValueErased):
            well.state.custom("profile").get("name")
        with pytest.raises(NotFound):
            well.erase("user:42")
        assert well.load("other").context == {"name": "other"}


@on_servers
@pytest.mark.parametrize(("point", "is_destroyed"), [("erasure.batch_written", False), ("erasure.destroyed", True)])
def test_killed_erasure_on_a_server_is_finished_too(url: str, point: str, is_destroyed: bool) -> None:
    test_killed_erasure_erases_all_or_is_finished_by_the_next_call(url, point, 1, is_destroyed)


ROTATED = [("rotation.batch_written", 1), ("rotation.batch_written", 2), ("store.before_commit", 2)]


@pytest.mark.parametrize(("point", "number"), ROTATED)
def test_killed_rotation_leaves_every_value_readable_and_goes_on(url: str, point: str, number: int) -> None:
    killed = run("rotate_keys", url, point, str(number))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    for ring in (RING, TURNED):
        with Stepwell(url, worker=False, encryption=ring) as well:
            assert [well.load(name).context["name"] for name in [*RUNS, "other"]] == [*RUNS, "other"]
    with Stepwell(url, worker=False, encryption=TURNED) as well:
        well.rotate_keys()
    with Stepwell(url, worker=False, encryption=KeyRing.of({"k2": b"2" * 32})) as well:
        assert [well.load(name).context["name"] for name in RUNS] == RUNS


@on_servers
def test_killed_rotation_on_a_server_goes_on_too(url: str) -> None:
    test_killed_rotation_leaves_every_value_readable_and_goes_on(url, *ROTATED[0])
