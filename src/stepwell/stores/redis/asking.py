"""Asks the servers: reads that can be repeated, with the scripts loaded and the store still the one that was opened."""

from __future__ import annotations

from collections.abc import Sequence

from redis import exceptions

from stepwell.stores.redis.answers import lost_store
from stepwell.stores.redis.calls import Argument, ScriptCall
from stepwell.stores.redis.keys import Keys
from stepwell.stores.redis.link import Command, RedisConnection, RedisConnectionLost, Reply
from stepwell.stores.redis.scripts import SCRIPTS
from stepwell.stores.redis.servers import Servers
from stepwell.stores.redis.settings import RedisSettings
from stepwell.stores.redis.survey import value_of

__all__ = ["Asking", "load_scripts"]


def load_scripts(link: RedisConnection) -> None:
    """Give a server all scripts."""
    for reply in link.exchange([("SCRIPT", "LOAD", script.text) for script in SCRIPTS.values()]):
        value_of(reply, link.settings)


class Asking:
    """Reads of one store. A read that was interrupted is asked again, once: it changes nothing."""

    def __init__(self, servers: Servers, keys: Keys, settings: RedisSettings, store_id: bytes) -> None:
        self.servers, self.keys, self.settings, self._id = servers, keys, settings, store_id
        # On a cluster the mark of the store is on a node of its own, and asking it each time would double every read.
        self._checks: list[tuple[bytes, Command]] = [] if servers.is_cluster else [(keys.store, ("GET", keys.store))]

    def ask(self, commands: Sequence[tuple[bytes, Command]]) -> list[Reply]:
        """A reply for each command, each given with a key that says where to; the first error is raised."""
        replies = self._send(commands)
        if any(isinstance(reply, exceptions.NoScriptError) for reply in replies):
            self.load_scripts()
            replies = self._send(commands)
        elif any(isinstance(reply, RedisConnectionLost) for reply in replies):
            replies = self._send(commands)
        values = [value_of(reply, self.settings) for reply in replies]
        if self._checks and values.pop(0) != self._id:
            raise lost_store()
        return values

    def _send(self, commands: Sequence[tuple[bytes, Command]]) -> list[Reply]:
        return self.servers.send([*self._checks, *commands])

    def one(self, *command: bytes | str | int, key: bytes) -> Reply:
        """The reply to one command."""
        return self.ask([(key, command)])[0]

    def script(self, name: str, keys: Sequence[bytes], *arguments: Argument) -> Reply:
        """The reply of a script that reads."""
        return self.ask([(keys[0], ScriptCall(name, keys, arguments).command())])[0]

    def load_scripts(self) -> None:
        """Give all servers all scripts; they forget them with a restart, a failover or SCRIPT FLUSH."""
        for link in self.servers.links():
            load_scripts(link)
