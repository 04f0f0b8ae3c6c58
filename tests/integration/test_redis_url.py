"""The URL of a Redis store: what it may say, and what is wrong with others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stepwell.clock import SystemClock
from stepwell.errors import (
    InvalidInput,
)
from stepwell.model.limits import Limits
from stepwell.stores.redis.store import RedisStore
from stepwell.stores.redis.url import RedisSettings, parse_url
from stepwell.stores.url import store_of


def test_url_says_everything() -> None:
    settings = parse_url(
        "rediss://us%40er:p%2Fw@db.example:7000/3?prefix=a%26b&execution_ttl=1m&connect_timeout=2&timeout=0.5&ssl_cert_reqs=none"
    )
    assert settings == RedisSettings(
        host="db.example",
        port=7000,
        database=3,
        username="us@er",
        password="p/w",
        is_encrypted=True,
        tls={"ssl_cert_reqs": "none"},
        prefix="a&b",
        execution_ttl_ms=60_000,
        connect_seconds=2,
        reply_seconds=0.5,
    )
    assert settings.name == "rediss://db.example:7000/3"


def test_url_with_sentinels_says_everything() -> None:
    settings = parse_url("rediss+sentinel://us%40er:pw@one:7000,two/my%2Fmaster/3?sentinel_password=s&prefix=a")
    assert settings == RedisSettings(
        sentinels=(("one", 7000), ("two", 26379)),
        service="my/master",
        sentinel_password="s",
        database=3,
        username="us@er",
        password="pw",
        is_encrypted=True,
        prefix="a",
    )
    assert settings.name == "rediss+sentinel://one:7000,two:26379/my/master/3"


def test_bare_url_is_the_local_server() -> None:
    assert parse_url("valkey://") == RedisSettings(host="localhost")


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("redis://host:port", "port"),
        ("redis://host:99999", "port"),
        ("redis://host/mine", "database"),
        ("redis://host/-1", "database"),
        ("redis://host/?color=red", "color"),
        ("redis://host/?sentinel_password=x", "sentinel_password"),
        ("redis+sentinel://host", "service"),
        ("redis+sentinel://host:99999/mymaster", "port"),
        ("redis+sentinel://host/mymaster/mine", "database"),
        ("redis://host/?prefix=", "prefix"),
        ("redis://host/?prefix=" + "x" * 65, "prefix"),
        ("redis://host/?execution_ttl=0", "execution_ttl"),
        ("redis://host/?execution_ttl=nan", "execution_ttl"),
        ("redis://host/?execution_ttl=soon", "execution_ttl"),
        ("redis://host/?connect_timeout=-1", "connect_timeout"),
        ("redis://host/?timeout=inf", "timeout"),
        ("redis://host/?ssl_cert_reqs=none", "rediss://"),
    ],
)
def test_url_that_cannot_be_is_refused_before_anything_is_reached(url: str, word: str) -> None:
    with pytest.raises(InvalidInput, match=word):
        store_of(url, SystemClock(), Limits())


@pytest.mark.parametrize("scheme", ["redis", "rediss", "valkey", "valkeys", "redis+sentinel", "valkeys+sentinel"])
def test_each_scheme_of_redis_is_a_redis_store(scheme: str) -> None:
    assert isinstance(
        store_of(f"{scheme}://localhost/1/0" if "+" in scheme else f"{scheme}://localhost", SystemClock(), Limits()), RedisStore
    )


def test_without_the_driver_the_install_line_is_given() -> None:
    """The driver is hidden in a process of its own, as if it had never been installed."""
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "import stepwell\n"
        "try: stepwell.Stepwell('redis://localhost')\n"
        "except stepwell.InvalidInput as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'stepwell[redis]'" in said


def test_importing_stepwell_does_not_load_the_driver() -> None:
    code = "import sys, stepwell; print([name for name in sys.modules if name.split('.')[0] in ('redis', 'hiredis')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.parametrize("scheme", ["redis+cluster", "rediss+cluster", "valkey+cluster"])
def test_cluster_is_refused_with_the_reason_and_without_its_password(scheme: str) -> None:
    with pytest.raises(InvalidInput, match=r"a cluster cannot hold a store.*redis\+sentinel") as refusal:
        store_of(f"{scheme}://me:hidden@one:7000,two:7001/0", SystemClock(), Limits())
    assert "hidden" not in str(refusal.value)
