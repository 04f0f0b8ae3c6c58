"""Stores over encrypted connections, with certificates that are checked, and with passwords."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.tls import CA, TlsFront

from stepwell import Stepwell, StoreUnavailable
from stepwell.stores.redis import connection


class Site:
    """A server behind TLS: its URL with a certificate to trust, or without."""

    def __init__(self, front: TlsFront, url: Callable[[str], str]) -> None:
        self.front, self.trusting, self.strange = front, url("trusting"), url("strange")


@pytest.fixture(params=["postgres", "redis"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        schema: str = request.getfixturevalue("postgres_schema")
        request.getfixturevalue("postgres_url")
        with TlsFront(server.port, is_asked=True) as front:
            plain = server.url(schema, port=front.port)
            trust = {"trusting": f"&sslrootcert={CA}", "strange": "&sslrootcert=system"}
            yield Site(front, lambda who: f"{plain}&sslmode=verify-full{trust[who]}")
        return
    redis: RedisServer = request.getfixturevalue("redis_server")
    url: str = request.getfixturevalue("redis_url")
    with TlsFront(redis.port) as front:
        plain = url.replace("redis://", "rediss://").replace(f":{redis.port}/", f":{front.port}/")
        trust = {"trusting": f"&ssl_ca_certs={CA}", "strange": ""}
        yield Site(front, lambda who: plain + trust[who])


def test_everything_goes_over_an_encrypted_connection(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_FRESH_SECONDS", 0)  # each connection is looked at before it is used again
    large = "x" * 200_000
    with Stepwell(site.trusting) as well:
        well.create("run", context={"large": large})
        with well.transaction("run") as tx:
            tx.set_variable("n", 1)
            tx.state(well.state.globals).set("k", large)
        with well.lock("door") as held:
            assert held.fence > 0
        assert [well.state.globals.increment("n") for _ in range(20)] == list(range(1, 21))
        assert well.load("run").context == {"large": large}
        assert well.state.globals.get("k") == large
        assert well.verify("run").ok
        assert well.health().is_ok
    assert site.front.served > 0


def test_a_waiter_is_woken_over_an_encrypted_connection(site: Site) -> None:
    with Stepwell(site.trusting) as holder, Stepwell(site.trusting) as waiter:
        lock = holder.lock("door")
        lock.acquire()
        taken = threading.Event()

        def wait() -> None:
            with waiter.lock("door", timeout="30s"):
                taken.set()

        thread = threading.Thread(target=wait)
        thread.start()
        lock.release()
        assert taken.wait(20)
        thread.join()


def test_a_server_whose_certificate_nobody_vouches_for_is_not_talked_to(site: Site) -> None:
    with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
        Stepwell(site.strange)
    assert site.front.served == 0


def test_a_plain_connection_to_a_server_that_wants_tls_is_refused_in_time(site: Site) -> None:
    plain = site.trusting.replace("rediss://", "redis://").replace("sslmode=verify-full", "sslmode=disable").split("&ssl")[0]
    plain += "&sslmode=disable" if "postgresql" in plain else "&connect_timeout=1"
    with pytest.raises(StoreUnavailable):
        Stepwell(plain)


@pytest.mark.parametrize("user", ["default", "ada"])
def test_redis_with_a_password_takes_the_right_one_only(tmp_path: Path, user: str) -> None:
    with RedisServer(tmp_path) as server:
        with server.client() as client:
            client.acl_setuser("ada", enabled=True, passwords=["+p@ss/w#rd"], keys=["*"], commands=["+@all"], channels=["*"])
            client.config_set("requirepass", "p@ss/w#rd")
        place = f"127.0.0.1:{server.port}/0"
        name = "" if user == "default" else user
        with Stepwell(f"redis://{name}:p%40ss%2Fw%23rd@{place}") as well:
            assert well.state.globals.increment("n") == 1
            assert "p@ss" not in repr(well)
            assert "p%40ss" not in repr(well)
        for wrong in (f"redis://{place}", f"redis://{name}:wrong@{place}"):
            with pytest.raises(StoreUnavailable, match="password") as caught:
                Stepwell(wrong)
            assert "wrong@" not in str(caught.value)
