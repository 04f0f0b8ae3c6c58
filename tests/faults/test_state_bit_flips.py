"""T11 for scoped state: a bit that flips at rest is found when it is read, others are not affected, and it can be set anew."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer

from stepwell import Corrupted, Stepwell
from stepwell.errors import StepwellError
from stepwell.model.commit import StateBatch, Written
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Increment, Put
from stepwell.testing.store_access import store_under

Flip = Callable[[bytes], bytes]


def flipped(data: bytes, at: int = -1, bit: int = 0) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    return bytes(changed)


def flip_in_sqlite(url: str, key: str, change: Flip) -> None:
    with apsw.Connection(url.removeprefix("sqlite:///")) as connection:
        [[data]] = connection.execute("SELECT data FROM state_entries WHERE key = ?", (key,)).fetchall()
        connection.execute("UPDATE state_entries SET data = ? WHERE key = ?", (change(data), key))


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Callable[[str], None]]:
    """Where a well is, and what flips a bit in the stored value of a key of its custom scope ``s``."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/well.db"
        return url, lambda key: flip_in_sqlite(url, key, flipped)
    url = request.getfixturevalue(f"{request.param}_url")
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        schema: str = request.getfixturevalue("postgres_schema")
        return url, lambda key: flip_in_postgres(server, schema, key)
    redis: RedisServer = request.getfixturevalue("redis_server")
    return url, lambda key: flip_in_redis(redis, key)


def flip_in_postgres(server: PostgresServer, schema: str, key: str) -> None:
    with server.connect() as connection:
        table = f"{schema}.state_entries"
        connection.execute(f"UPDATE {table} SET data = set_byte(data, 5, get_byte(data, 5) # 1) WHERE key = %s", (key,))


def flip_in_redis(server: RedisServer, key: str) -> None:
    with server.client() as client:
        [table] = [name for name in client.scan_iter() if client.type(name) == b"hash" and client.hexists(name, key)]
        client.hset(table, key, flipped(client.hget(table, key)))


def test_a_flipped_value_is_reported_and_others_are_read(place: tuple[str, Callable[[str], None]]) -> None:
    url, flip = place
    with Stepwell(url) as well:
        scope = well.state.custom("s")
        scope.set_many({"good": {"n": 1}, "bad": 41})
        flip("bad")
        for read in (
            lambda: scope.get("bad"),
            lambda: scope.get_many(["good", "bad"]),
            lambda: scope.entry("bad"),
            scope.all,
            lambda: list(scope.watch(since=0, idle_seconds=0)),
        ):
            with pytest.raises(Corrupted, match="the value of key 'bad' in scope 'custom/default/s' does not match") as caught:
                read()
            assert caught.value.code == "SW-305"
        assert scope.get("good") == {"n": 1}


def test_nothing_is_built_on_a_flipped_value(place: tuple[str, Callable[[str], None]]) -> None:
    """The refusal is that of one unit: what was written with it in one transaction of the store lands."""
    url, flip = place
    path = Scope.custom("s").path
    with Stepwell(url) as well:
        scope = well.state.custom("s")
        scope.set("bad", 41)
        flip("bad")
        for use in (
            lambda: scope.increment("bad"),
            lambda: scope.merge("bad", 5, "max"),
            lambda: scope.copy("bad", "other"),
            lambda: scope.move("bad", "other"),
        ):
            with pytest.raises(Corrupted):
                use()
        refused, landed = store_under(well).write(
            [StateBatch((Increment(path, "bad", 1),)), StateBatch((Put(path, "good", b"1"),))]  # type: ignore[arg-type]
        )
        assert isinstance(refused, Corrupted)
        assert isinstance(landed, Written)
        assert scope.get("good") == 1
        assert scope.get("other") is None


@pytest.mark.parametrize("repair", ["set", "delete", "clear"])
def test_a_flipped_value_can_be_set_anew_or_deleted(place: tuple[str, Callable[[str], None]], repair: str) -> None:
    url, flip = place
    with Stepwell(url) as well:
        scope = well.state.custom("s")
        scope.set("bad", 41)
        flip("bad")
        if repair == "set":
            scope.set("bad", 42)
        elif repair == "delete":
            assert scope.delete("bad")
        else:
            assert scope.clear() == 1
        assert scope.get("bad") == (42 if repair == "set" else None)
        scope.set("bad", 43)
        assert scope.increment("bad") == 44


def test_every_bit_of_a_stored_row_is_under_its_seal(quick_path: Path) -> None:
    """T11: all bits of a value, and one of each number beside it."""
    url, value = f"sqlite:///{quick_path}/well.db", {"name": "Ada", "n": 12}
    with Stepwell(url) as well:
        scope = well.state.custom("s")
        scope.set("k", value, ttl="1d", sliding=True)
        connection = apsw.Connection(f"{quick_path}/well.db")
        columns = ("data", "revision", "expires_ms", "ttl_ms", "sliding")
        [row] = connection.execute(f"SELECT {', '.join(columns)} FROM state_entries").fetchall()
        changes = [("data", flipped(row[0], at, bit)) for at in range(len(row[0])) for bit in range(8)]
        changes += [(column, row[number] ^ 1) for number, column in enumerate(columns) if number]
        for column, content in random.Random(11).sample(changes, 60) + changes[-4:]:
            connection.execute(f"UPDATE state_entries SET {column} = ?", (content,))
            with pytest.raises(Corrupted):
                scope.get("k")
            connection.execute(f"UPDATE state_entries SET {column} = ?", (row[columns.index(column)],))
        assert scope.get("k") == value
        connection.close()


def test_values_without_a_seal_are_read_and_sealed_at_the_next_write(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/well.db"
    with Stepwell(url) as well:
        scope = well.state.custom("s")
        scope.set("old", 41)
        flip_in_sqlite(url, "old", lambda _: b"41")
        assert scope.get("old") == 41
        assert scope.increment("old") == 42
        flip_in_sqlite(url, "old", flipped)
        with pytest.raises(StepwellError, match="checksum"):
            scope.get("old")
