"""Runs over HTTP: start, wait, read, follow and act on them."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest
from tests.web.servers import Api, approve, async_test, fail, greet, served

from stepwell import AsyncStepwell, Status, workflow
from stepwell.state.history import ExecutionSummary
from stepwell.web.events import EventHub
from stepwell.web.settings import HttpLimits

__all__ = ["approve", "fail", "greet"]


@workflow(name="nested")
def nested(given: dict[str, Any]) -> int:
    return len(given)


@workflow(name="secretive", secrets=["pin"])
def secretive(given: dict[str, Any]) -> int:
    return len(given)


RUNS = "/api/v1/runs"


async def ended(client: httpx.AsyncClient, execution_id: str) -> dict[str, Any]:
    reply = await client.get(f"{RUNS}/{execution_id}/result?wait=20")
    assert reply.status_code == 200, reply.text
    return reply.json()


@async_test
async def test_a_start_is_accepted_and_its_result_is_waited_for():
    async with served() as api, api.client() as client:
        reply = await client.post(RUNS, json={"workflow": "greet", "input": "Ada", "execution_id": "a/b %"})
        assert reply.status_code == 202
        assert reply.json() == {"execution_id": "a/b %", "workspace_id": "acme", "workflow_id": "greet", "status": "PENDING"}
        view = await ended(client, "a%2Fb%20%25")
        assert (view["status"], view["output"], view["input"]) == ("COMPLETED", "Hello, Ada!", "Ada")
        assert (await client.get(reply.headers["location"])).json()["output"] == "Hello, Ada!"


@async_test
async def test_prefer_wait_returns_the_result():
    async with served() as api, api.client() as client:
        reply = await client.post(RUNS, json={"workflow": "greet"}, headers={"Prefer": "wait=20"})
        assert (reply.status_code, reply.json()["output"]) == (200, "Hello, world!")
        assert reply.headers["preference-applied"] == "wait=20"
        waiting = await client.post(RUNS, json={"workflow": "approve"}, headers={"Prefer": "wait=0"})
        assert waiting.status_code == 202


@async_test
async def test_a_failed_run_says_why():
    async with served() as api, api.client() as client:
        await client.put(f"{RUNS}/f", json={"workflow": "fail"})
        view = await ended(client, "f")
        assert (view["status"], view["error"]["kind"], view["error"]["message"]) == ("FAILED", "ValueError", "no way")


@async_test
async def test_the_same_idempotency_key_starts_one_run_and_returns_its_first_reply():
    async with served() as api, api.client() as client:
        headers = {"Idempotency-Key": "order-7"}
        body = {"workflow": "greet", "input": "Ada"}
        replies = await asyncio.gather(*(client.post(RUNS, json=body, headers=headers) for _ in range(8)))
        assert {reply.status_code for reply in replies} == {202}
        assert len({reply.text for reply in replies}) == 1
        assert [reply.headers.get("idempotency-replayed") for reply in replies].count("true") == 7
        assert len((await client.get(RUNS)).json()["items"]) == 1
        other = await client.post(RUNS, json={"workflow": "approve"}, headers=headers)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


@async_test
async def test_an_idempotency_key_is_of_one_workspace():
    async with served() as api, api.client() as client, api.client("rival") as rival:
        headers = {"Idempotency-Key": "k"}
        mine = (await client.post(RUNS, json={"workflow": "greet"}, headers=headers)).json()
        theirs = (await rival.post(RUNS, json={"workflow": "greet"}, headers=headers)).json()
        assert mine["execution_id"] != theirs["execution_id"]


@async_test
async def test_a_refused_start_leaves_its_idempotency_key_free():
    async with served() as api, api.client() as client:
        headers = {"Idempotency-Key": "k"}
        assert (await client.post(RUNS, json={"workflow": "nowhere"}, headers=headers)).status_code == 404
        assert (await client.post(RUNS, json={"workflow": "greet"}, headers=headers)).status_code == 202


@async_test
async def test_a_signal_with_an_idempotency_key_is_sent_once():
    async with served() as api, api.client() as client:
        await client.put(f"{RUNS}/s", json={"workflow": "approve"})
        replies = [
            await client.post(f"{RUNS}/s/signal", json={"name": "other"}, headers={"Idempotency-Key": "k"}) for _ in range(2)
        ]
        assert [reply.headers.get("idempotency-replayed") for reply in replies] == [None, "true"]
        await client.post(f"{RUNS}/s/signal", json={"name": "approve", "value": "yes"})
        assert (await ended(client, "s"))["output"] == "yes"


@async_test
async def test_pages_follow_each_other_and_a_forged_cursor_is_refused():
    async with served() as api, api.client() as client, api.client("rival") as rival:
        for number in range(5):
            await client.put(f"{RUNS}/r{number}", json={"workflow": "greet"})
        found: list[str] = []
        url = f"{RUNS}?limit=2"
        cursors: list[str] = []
        while url:
            page = await client.get(url)
            found += [each["execution_id"] for each in page.json()["items"]]
            cursors += [page.json()["next_cursor"] or ""]
            url = page.links.get("next", {}).get("url", "")
        assert sorted(found) == [f"r{number}" for number in range(5)]
        assert len(found) == 5
        forged = cursors[0][:-2] + ("A" if cursors[0][-2] != "A" else "B") + cursors[0][-1]
        for client_, params in ((client, {"cursor": forged}), (rival, {"cursor": cursors[0]}), (client, {"cursor": "é"})):
            assert (await client_.get(RUNS, params=params)).status_code == 400
        swapped = await client.get(RUNS, params={"cursor": cursors[0], "filter": "status:FAILED"})
        assert swapped.status_code == 400


@async_test
async def test_a_filter_is_applied_and_its_fault_has_a_column():
    async with served() as api, api.client() as client:
        await client.put(f"{RUNS}/a", json={"workflow": "greet"})
        await client.put(f"{RUNS}/b", json={"workflow": "approve"})
        await ended(client, "a")
        names = [
            each["execution_id"] for each in (await client.get(f'{RUNS}?filter=workflow:"greet" status:COMPLETED')).json()["items"]
        ]
        assert names == ["a"]
        for text, column in (("workflow:greet size:1", 16), ("status:DONE", 8), ("oops", 1), ("status:FAILED status:FAILED", 15)):
            reply = await client.get(RUNS, params={"filter": text})
            assert (reply.status_code, reply.json()["column"]) == (422, column), text


@async_test
async def test_runs_are_found_by_what_is_inside_of_them():
    async with served() as api, api.client() as client:
        for name in ("Ada", "Eve"):
            await api.well.start(
                nested, {"user": {"name": name, "id": 42}, "cards": ["a", "b"]}, workspace="acme", execution_id=name
            )
            await ended(client, name)
        await api.well.create("tagged", "acme")
        async with api.well.transaction("tagged") as tx:
            tx.set_metadata({"tags": ["vip", "eu"]})
        await client.put(f"{RUNS}/waits", json={"workflow": "approve"})
        await client.post(f"{RUNS}/waits/signal", json={"name": "other"})

        async def found(text: str) -> list[str]:
            reply = await client.get(RUNS, params={"filter": text})
            assert reply.status_code == 200, reply.text
            return sorted(each["execution_id"] for each in reply.json()["items"])

        assert await found("input.user.name:Ada") == ["Ada"]
        assert await found("input.user.id:42 input.cards.1:b") == ["Ada", "Eve"]
        assert await found("input.user.id:43") == []
        assert await found("input.user.name:Ada workflow:other") == []
        assert await found("tag:vip") == ["tagged"]
        assert await found("has:signal") == ["waits"]
        assert await found("has:receipt-gap") == []
        for wrong in ("input:x", "status.x:FAILED", "has:nothing", "input.user<1h"):
            assert (await client.get(RUNS, params={"filter": wrong})).status_code == 422


@async_test
async def test_a_secret_of_an_input_is_not_found_by_guessing():
    async with served() as api, api.client() as client:
        await api.well.start(secretive, {"pin": "1234"}, workspace="acme", execution_id="s")
        await ended(client, "s")
        guessed = (await client.get(RUNS, params={"filter": "input.pin:1234"})).json()
        assert guessed["items"] == []


@async_test
async def test_a_damaged_run_is_found_by_its_receipts_and_hides_no_other(tmp_path: Path):
    async with AsyncStepwell(f"sqlite:///{tmp_path}/w.db", worker=False) as well:
        for name in ("good", "bad"):
            await well.create(name, "acme")
            async with well.transaction(name) as tx:
                tx.set_metadata({"tags": ["vip", name]})
        _, tagged = await well.receipts("bad")
    database = apsw.Connection(f"{tmp_path}/w.db")
    database.execute("UPDATE commits SET body = ?2 WHERE body = ?1", (tagged.body, tagged.body.replace(b"vip", b"vap")))
    database.close()
    async with served(f"sqlite:///{tmp_path}/w.db") as api, api.client() as client:
        for query, names in (
            ("filter=tag:vip", ["good"]),
            ("filter=has:receipt-gap", ["bad"]),
            ("expand=progress", ["bad", "good"]),
        ):
            reply = await client.get(f"{RUNS}?{query}")
            assert reply.status_code == 200, (query, reply.text)
            assert sorted(each["execution_id"] for each in reply.json()["items"]) == names
        assert "progress" not in next(each for each in reply.json()["items"] if each["execution_id"] == "bad")["expanded"]


@async_test
async def test_lists_are_counted_and_runs_are_expanded_when_they_are_asked_to():
    async with served() as api, api.client() as client:
        for number in range(5):
            await client.put(f"{RUNS}/r{number}", json={"workflow": "greet"})
        await ended(client, "r0")
        plain = (await client.get(f"{RUNS}?limit=2")).json()
        assert "count" not in plain
        assert "expanded" not in plain["items"][0]
        counted = (await client.get(f"{RUNS}?limit=2&count=exact")).json()
        assert (len(counted["items"]), counted["count"]) == (2, {"value": 5, "is_exact": True})
        assert (await client.get("/api/v1/queue/items?count=estimate")).json()["count"] == {"value": 5, "is_exact": True}
        assert (await client.get("/api/v1/tiers?count=exact&limit=1")).json()["count"]["value"] > 1
        assert (await client.get(f"{RUNS}?count=yes")).status_code == 422
        shown = (await client.get(f"{RUNS}?limit=2&expand=progress,steps,item,parent")).json()["items"][0]["expanded"]
        assert set(shown) == {"progress", "steps", "item", "parent"}
        assert (shown["item"]["workflow_id"], shown["parent"]) == ("greet", None)
        one = await client.get(f"{RUNS}/r0?expand=progress")
        assert one.json()["expanded"]["progress"]["status"] == "COMPLETED"
        assert "etag" not in one.headers
        assert (await client.get(f"{RUNS}?expand=nothing")).status_code == 422
        assert (await client.get(f"{RUNS}?expand=steps&limit=51")).status_code == 422


@async_test
async def test_the_etag_of_a_run_is_its_revision():
    async with served() as api, api.client() as client:
        await client.put(f"{RUNS}/a", json={"workflow": "greet"})
        view = await ended(client, "a")
        etag = (await client.get(f"{RUNS}/a")).headers["etag"]
        assert etag == f'"{view["revision"]}"'
        assert (await client.get(f"{RUNS}/a", headers={"If-None-Match": etag})).status_code == 304
        assert (await client.delete(f"{RUNS}/a")).status_code == 428
        assert (await client.delete(f"{RUNS}/a", headers={"If-Match": '"0"'})).status_code == 412
        assert (await client.delete(f"{RUNS}/a", headers={"If-Match": etag})).status_code == 204
        assert (await client.get(f"{RUNS}/a")).status_code == 404


@async_test
async def test_everything_about_a_run_can_be_read():
    async with served() as api, api.client() as client:
        await client.put(f"{RUNS}/a", json={"workflow": "greet"})
        await ended(client, "a")
        for part in ("state", "steps", "progress", "trace", "receipts", "verification", "diff?a=0&b=1"):
            reply = await client.get(f"{RUNS}/a/{part}")
            assert reply.status_code == 200, (part, reply.text)
        assert (await client.get(f"{RUNS}/a/drawing")).text.startswith("<svg")
        proof = (await client.get(f"{RUNS}/a/proof")).content
        import stepwell

        assert stepwell.verify_proof(proof).ok
        assert (await client.get(f"{RUNS}/a/verification")).json()["ok"] is True


@async_test
async def test_a_run_is_cancelled_forked_and_retried():
    async with served() as api, api.client() as client:
        await client.put(f"{RUNS}/a", json={"workflow": "approve"})
        fork = await client.post(f"{RUNS}/a/fork", json={"new_id": "b"})
        assert (fork.status_code, fork.headers["location"]) == (201, "/api/v1/runs/b")
        edited = {"new_id": "c", "input": None, "variables": {"note": "by hand"}}
        assert (await client.post(f"{RUNS}/a/fork", json=edited)).status_code == 201
        assert (await client.get(f"{RUNS}/c/state")).json()["variables"] == {"note": "by hand"}
        wrong = await client.post(f"{RUNS}/a/fork", json={"new_id": "d", "input": 7})
        assert (wrong.status_code, wrong.json()["code"]) == (422, "SW-101")
        assert (await client.post(f"{RUNS}/a/cancel")).status_code == 202
        assert (await ended(client, "a"))["status"] == "CANCELLED"
        again = await client.post(f"{RUNS}/a/cancel")
        assert (again.status_code, again.json()["code"]) == (409, "SW-205")
        await client.put(f"{RUNS}/f", json={"workflow": "fail"})
        await ended(client, "f")
        assert (await client.post(f"{RUNS}/f/retry")).status_code == 202


@async_test
async def test_a_run_is_paused_and_resumed():
    async with served() as api, api.client() as client:
        await client.put(f"{RUNS}/a", json={"workflow": "approve"})
        paused = await client.post(f"{RUNS}/a/pause", json={"reason": "the bank is down"})
        assert (paused.status_code, paused.json()) == (202, {"execution_id": "a", "action": "pause"})
        progress = (await client.get(f"{RUNS}/a/progress")).json()
        assert progress["waiting_on"]["kind"] == "paused"
        assert progress["pause"]["reason"] == "the bank is down"
        assert progress["pause"]["by"] == progress["waiting_on"]["name"]
        assert progress["pause"]["by"]
        await client.post(f"{RUNS}/a/signal", json={"name": "approve", "value": "yes"})
        assert (await client.post(f"{RUNS}/a/resume")).status_code == 202
        assert (await ended(client, "a"))["status"] == "COMPLETED"
        assert (await client.post(f"{RUNS}/a/pause")).status_code == 409


@async_test
async def test_events_begin_with_a_snapshot_end_with_the_run_and_resume():
    async with served() as api, api.client() as client:
        await client.put(f"{RUNS}/a", json={"workflow": "approve"})
        await until_waiting(api, "a")
        poll = {"Accept": "application/json"}
        first = (await client.get(f"{RUNS}/a/events?wait=5", headers=poll)).json()
        assert [each["event"] for each in first["items"]] == ["snapshot"]
        await client.post(f"{RUNS}/a/signal", json={"name": "approve", "value": 1})
        await ended(client, "a")
        stream = await client.get(f"{RUNS}/a/events", headers={"Accept": "text/event-stream", "Last-Event-ID": str(first["after"])})
        assert stream.headers["content-type"].startswith("text/event-stream")
        kinds = [line.removeprefix("event: ") for line in stream.text.splitlines() if line.startswith("event: ")]
        assert set(kinds[:-1]) == {"commit"}
        assert kinds[-1] == "end"
        ids = [int(line.removeprefix("id: ")) for line in stream.text.splitlines() if line.startswith("id: ")]
        assert ids == sorted(ids)
        assert ids[0] == first["after"] + 1
        lines = await client.get(f"{RUNS}/a/events?after=-1", headers={"Accept": "application/x-ndjson"})
        events = [json.loads(line) for line in lines.text.splitlines() if line]
        assert [each["id"] for each in events[:-1]] == list(range(len(events) - 1))


async def until_waiting(api: Api, execution_id: str) -> None:
    while (await api.well.executions.get(execution_id)).status != "WAITING":  # noqa: ASYNC110 - another task's progress
        await asyncio.sleep(0.01)


@async_test
async def test_a_stream_that_resumes_beyond_the_run_is_reset():
    async with served() as api, api.client() as client:
        await client.put(f"{RUNS}/a", json={"workflow": "greet"})
        await ended(client, "a")
        reply = await client.get(f"{RUNS}/a/events?after=500", headers={"Accept": "application/x-ndjson"})
        assert [json.loads(line)["event"] for line in reply.text.splitlines() if line] == ["reset", "end"]


@async_test
async def test_runs_of_the_workspace_are_followed():
    async with served() as api, api.client() as client:
        poll = {"Accept": "application/json"}
        after = (await client.get("/api/v1/events?wait=5", headers=poll)).json()["after"]
        await api.well.start(greet, workspace="rival", execution_id="theirs")
        await client.put(f"{RUNS}/mine", json={"workflow": "greet"})
        page = (await client.get(f"/api/v1/events?after={after}&wait=5", headers=poll)).json()
        assert {each["data"]["execution_id"] for each in page["items"]} == {"mine"}


@async_test
async def test_a_run_that_leaves_the_filter_is_told_and_so_is_one_that_was_deleted():
    async with served() as api, api.client() as client:
        await client.put(f"{RUNS}/a", json={"workflow": "approve"})
        await until_waiting(api, "a")
        stream = EventHub(api.well, HttpLimits()).workspace_events("acme", "WAITING", None, None)
        first = await anext(stream)
        assert (first.event, [each.execution_id for each in first.data]) == ("snapshot", ["a"])
        await api.well.run("a").signal("approve", 1)
        await ended(client, "a")
        left = await asyncio.wait_for(anext(stream), 10)
        assert (left.event, left.data.execution_id, left.data.status) == ("run", "a", "COMPLETED")
        await client.put(f"{RUNS}/b", json={"workflow": "approve"})
        assert (await asyncio.wait_for(anext(stream), 10)).data.execution_id == "b"
        await api.well.delete("b")
        gone = await asyncio.wait_for(anext(stream), 10)
        assert (gone.event, gone.data) == ("gone", {"execution_id": "b"})
        await stream.aclose()


@async_test
async def test_a_commit_that_becomes_visible_after_a_later_one_is_told():
    def summary(name: str, ms: int) -> ExecutionSummary:
        at = datetime.fromtimestamp(ms / 1000, UTC)
        return ExecutionSummary(name, "greet", "acme", 1, Status.RUNNING, 1, at, at)

    async with served(worker=False) as api:
        hub = EventHub(api.well, HttpLimits())
        pages = [[summary("late", 900)], [summary("late", 1_000)], [summary("late", 1_000), summary("early", 950)]]

        async def page(_: object) -> list[ExecutionSummary]:
            return pages.pop(0) if len(pages) > 1 else pages[0]

        hub._page = page  # type: ignore[method-assign]
        stream = hub.workspace_events("acme", None, None, None)
        found = [await asyncio.wait_for(anext(stream), 10) for _ in range(3)]
        assert [each.event for each in found] == ["snapshot", "run", "run"]
        assert found[2].data.execution_id == "early"
        assert [each.id for each in found] == [900, 1_000, 1_000]
        await stream.aclose()
        await hub.close()


@async_test
async def test_a_start_beyond_the_slots_of_the_workspace_may_be_tried_again():
    async with served() as api, api.client() as client:
        await api.well.workspaces.put("acme", tier="free")
        assert (await client.post(RUNS, json={"workflow": "approve"})).status_code == 202
        refused = await client.post(RUNS, json={"workflow": "approve"})
        assert (refused.status_code, refused.json()["code"], refused.json()["retryable"]) == (429, "SW-102", True)
        assert refused.headers["retry-after"] == "1"


@async_test
async def test_erased_run_is_listed_and_its_content_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "keys.json").write_text(json.dumps({"keys": {"k1": b64encode(b"1" * 32).decode()}}))
    monkeypatch.setenv("STEPWELL_KEYRING", str(tmp_path / "keys.json"))
    async with served(url=f"sqlite:///{tmp_path}/well.db") as api, api.client() as client:
        await api.well.create("erased", "acme", {"name": "Zaphod"}, subject="user:42")
        await api.well.erase("user:42", cancel=True)
        page = await client.get(RUNS)
        assert (page.status_code, page.json()["items"][0]["execution_id"]) == (200, "erased")
        reply = await client.get(f"{RUNS}/erased")
        assert (reply.status_code, "Zaphod" in reply.text) == (410, False), reply.text
        checked = await client.get(f"{RUNS}/erased/verification")
        assert (checked.status_code, checked.json()["ok"]) == (200, True), checked.text
