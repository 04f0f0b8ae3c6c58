"""Settings: where the URL comes from, and that no password is ever shown."""

from __future__ import annotations

import pytest

from stepwell.config import DEFAULT_URL, choose_url, without_secrets


@pytest.mark.parametrize(
    ("given", "environ", "chosen"),
    [
        ("memory://", {"STEPWELL_URL": "a://", "REDIS_URL": "b://"}, ("memory://", "the argument")),
        (None, {"STEPWELL_URL": "a://", "REDIS_URL": "b://"}, ("a://", "STEPWELL_URL")),
        (None, {"REDIS_URL": "b://"}, ("b://", "REDIS_URL")),
        (None, {"STEPWELL_URL": "", "REDIS_URL": "b://"}, ("b://", "REDIS_URL")),
        (None, {"STEPWELL_URL": "", "REDIS_URL": ""}, (DEFAULT_URL, "the default")),
        (None, {}, ("sqlite:///.stepwell/well.db", "the default")),
    ],
)
def test_url_is_the_argument_else_the_environment_else_the_default(
    given: str | None, environ: dict[str, str], chosen: tuple[str, str]
) -> None:
    assert choose_url(given, environ) == chosen


def test_environment_is_read_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_URL", "memory://")
    assert choose_url(None) == ("memory://", "STEPWELL_URL")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///a/b.db?synchronous=NORMAL", "sqlite:///a/b.db?synchronous=NORMAL"),
        ("sqlite:////tmp/a@b.db", "sqlite:////tmp/a@b.db"),
        ("memory://", "memory://"),
        ("", ""),
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:hunter2@localhost:6379/0", "redis://:***@localhost:6379/0"),
        ("postgresql://me:hunter2@db/well?sslmode=require", "postgresql://me:***@db/well?sslmode=require"),
        ("postgresql://me@db/well", "postgresql://me@db/well"),
        ("postgresql://me:@db/well", "postgresql://me:***@db/well"),
    ],
)
def test_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@localhost",
        "redis://me:hunter2:more@localhost",
        "redis://me:a@hunter2@localhost",
        "redis://me:a/hunter2@localhost",
        "redis://me:a#hunter2@localhost",
        "redis://me:a?hunter2@localhost",
        "redis://me:hunter2@[::1",
        "redis://me:a\nhunter2@localhost",
        "postgresql://db/well?user=me&password=hunter2",
        "postgresql://db/well?PASSWORD=hunter2&sslmode=require",
        "redis://localhost?sslpassword=hunter2",
        "postgresql://me:hunter2@db/well?password=hunter2",
    ],
)
def test_no_spelling_of_a_password_gets_through(url: str) -> None:
    shown = without_secrets(url)
    assert "hunter2" not in shown
    assert "***" in shown
