"""Where the well is: the argument, the environment or the default; logged, and never with a password."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.acceptance.conftest import OpenWell

from stepwell import AsyncStepwell, InvalidInput, Stepwell, StoreUnavailable


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder and an environment in which nothing has chosen a URL yet."""
    monkeypatch.chdir(tmp_path)
    for name in ("STEPWELL_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_url_the_well_is_a_file_in_this_folder(open_well: OpenWell, tmp_path: Path) -> None:
    open_well().create("run", context={"a": 1})
    assert (tmp_path / ".stepwell" / "well.db").is_file()
    assert open_well().load("run").context == {"a": 1}


def test_stepwell_url_comes_before_redis_url(open_well: OpenWell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://:hunter2@localhost:1/0")
    monkeypatch.setenv("STEPWELL_URL", "sqlite:///chosen.db")
    open_well().create("run")
    assert (tmp_path / "chosen.db").is_file()
    assert not (tmp_path / ".stepwell").exists()


def test_argument_comes_before_the_environment(open_well: OpenWell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_URL", "sqlite:///chosen.db")
    assert open_well("memory://").durability().level == "none"
    assert list(tmp_path.iterdir()) == []


def test_redis_url_is_never_silently_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens there, so the well cannot be opened; it must not fall back to a file."""
    monkeypatch.setenv("REDIS_URL", "redis://:hunter2@127.0.0.1:1/0")
    with pytest.raises((StoreUnavailable, InvalidInput)) as caught:
        Stepwell()
    assert "hunter2" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_choice_is_logged_with_its_origin(
    open_well: OpenWell, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.INFO, logger="stepwell"):
        open_well()
        open_well("memory://")
        monkeypatch.setenv("STEPWELL_URL", "sqlite:///other.db")
        open_well()
    messages = [record.getMessage() for record in caplog.records if record.getMessage().startswith("store:")]
    assert messages == [
        "store: sqlite:///.stepwell/well.db (from the default)",
        "store: memory:// (from the argument)",
        "store: sqlite:///other.db (from STEPWELL_URL)",
    ]


@pytest.mark.parametrize(
    "url", ["nonsense://me:hunter2@host/db", "nonsense://me:a/hunter2@host", "nonsense://host?password=hunter2"]
)
def test_password_is_neither_logged_nor_in_an_error(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(InvalidInput) as caught:
        Stepwell(url)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in caplog.text


def test_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / ".stepwell").write_text("a file where the folder should be")
    with pytest.raises(StoreUnavailable, match="STEPWELL_URL"):
        Stepwell()
    assert (tmp_path / ".stepwell").read_text() == "a file where the folder should be"


@pytest.mark.parametrize(
    ("options", "level"),
    [
        ("", "full"),
        ("?synchronous=FULL", "full"),
        ("?synchronous=normal", "normal"),
        ("?busy_seconds=0.5", "full"),
        ("?busy_seconds=500ms", "full"),
    ],
)
def test_durability_follows_from_the_url(open_well: OpenWell, options: str, level: str) -> None:
    """P2."""
    well = open_well(f"sqlite:///well.db{options}")
    assert well.durability().level == level
    well.create("run")
    assert "synchronous=" in well.durability().reason


def test_relative_and_absolute_paths_and_odd_names(open_well: OpenWell, tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    open_well("sqlite:///a folder/we%20ll%3F.db").create("one")
    assert (tmp_path / "a folder" / "we ll?.db").is_file()
    open_well(f"sqlite:///{tmp_path}/abs.db").create("two")
    assert (tmp_path / "abs.db").is_file()


@pytest.mark.parametrize("settings", [{"concurrency": 0}, {"concurrency": 1.5}, {"lease_seconds": 0}, {"lease_seconds": 10**6}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    for face in (Stepwell, AsyncStepwell):
        with pytest.raises(InvalidInput, match=next(iter(settings))):
            face("memory://", **settings)


def test_well_is_a_context_manager_and_may_be_closed_twice(open_well: OpenWell) -> None:
    well = open_well("sqlite:///well.db")
    with well:
        well.create("run")
        well.close()
    well.close()
    for use in (lambda: well.create("more"), lambda: well.load("run"), lambda: well.state.globals.set("a", 1)):
        with pytest.raises(StoreUnavailable, match="closed; open it again"):
            use()


@pytest.mark.parametrize("url", ["memory://shared", "memory:///shared", "memory://?ttl=5", "memory:name", "MEMORY://x"])
def test_memory_has_no_name_and_no_options(url: str) -> None:
    """A name in the URL would mean that two wells share the store."""
    for face in (Stepwell, AsyncStepwell):
        with pytest.raises(InvalidInput, match=r"no name and no options.*write memory://"):
            face(url)


@pytest.mark.parametrize("url", ["memory://", "memory:"])
def test_memory_without_a_name_is_a_store_of_its_own(open_well: OpenWell, url: str) -> None:
    open_well(url).create("run")
    assert open_well(url).executions.list() == []


@pytest.mark.parametrize(
    "url", ["sqlite:///well.db?sinchronous=NORMAL", "redis://127.0.0.1:1/0?ttl=5", "postgresql://127.0.0.1:1/db?poolsize=4"]
)
def test_unknown_options_are_refused_by_their_names(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"sinchronous|ttl|poolsize"):
        Stepwell(url)


@pytest.mark.parametrize(
    "url", ["sqlite:///a#b.db", "redis://:hunter2#x@127.0.0.1:1/0", "postgresql://me:hunter2#x@127.0.0.1:1/db"]
)
def test_hash_in_a_url_is_refused_and_not_taken_for_its_end(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidInput, match="%23") as caught:
        Stepwell(url)
    assert "hunter2" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
