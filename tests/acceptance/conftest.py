"""Wells to test on: each store through each face, opened by URL as users open them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.faces import Awaited, LoopThread

from stepwell import FakeClock, Stepwell

OpenWell = Callable[..., Stepwell]


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the well is; opened twice, only that of SQLite is the same one."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/well.db"


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """A well that survives its process."""
    return f"sqlite:///{tmp_path}/well.db"


@pytest.fixture(params=["blocking", "awaited"])
def open_well(request: pytest.FixtureRequest) -> Iterator[OpenWell]:
    """Opens wells in one of the faces, and closes them at the end."""
    opened: list[Any] = []
    loop = LoopThread() if request.param == "awaited" else None

    def open_one(*arguments: Any, **options: Any) -> Any:
        well = Stepwell(*arguments, **options) if loop is None else Awaited.open(loop, *arguments, **options)
        opened.append(well)
        return well

    yield open_one
    for well in opened:
        well.close()
    if loop is not None:
        loop.close()


@pytest.fixture
def well(open_well: OpenWell, url: str, clock: FakeClock) -> Stepwell:
    """A well on each store, through each face."""
    return open_well(url, clock=clock)


@pytest.fixture
def working_well(open_well: OpenWell, url: str) -> Stepwell:
    """A well that works by the machine's clock, since its worker sleeps by it: for modules that say ``well = working_well``."""
    return open_well(url)
