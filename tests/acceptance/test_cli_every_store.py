"""The command line on every store that processes can share."""

from __future__ import annotations

from tests.support.command_line import Shell, shell
from tests.support.store_urls import on_shared_stores, url

__all__ = ["shell", "url"]


@on_shared_stores
def test_run_is_started_signalled_finished_and_looked_at(shell: Shell, url: str):
    shell.url = url
    assert shell("start", "shop.py:approval", "--id", "a", "-i", '"ada"').code == 0
    assert shell("signal", "a", "approve", '"yes"').code == 0
    assert shell("run", "shop.py:approval", "--id", "a").json == "ada: yes"
    assert [each["execution_id"] for each in shell("list", "--json", "--status", "completed").lines] == ["a"]
    assert shell("show", "a", "--json").json["result"] == {"output": "ada: yes"}
    assert shell("verify", "a").code == 0
    assert shell("fork", "a", "b", "--at", "0").code == 0
    assert shell("state", "set", "global", "key", "1").code == 0
    assert shell("state", "get", "global", "key").out == "1\n"
    assert shell("doctor").code == 0
    assert shell("migrate").code == 0
