"""Home and the list of runs: filters, counts, columns, live rows, export, and actions on many."""

from __future__ import annotations

import asyncio
import json
import re

import httpx
import pytest
from tests.web.dashboard.browsing import Person, browsing, text_of
from tests.web.dashboard.test_run import ended, refused, until
from tests.web.servers import approve, async_test, greet

from stepwell import Status
from stepwell.web.dashboard.screens import home


async def some(person: Person) -> None:
    """Start one run that completes, one that fails and one that waits."""
    await ended(person, await person.well.start(greet, "Ada", workspace="acme", execution_id="done-1"))
    await ended(person, await person.well.start(refused, workspace="acme", execution_id="failed-1"))
    await person.well.start(approve, workspace="acme", execution_id="waits-1")

    async def rests() -> bool:
        return (await person.well.executions.get("waits-1")).status == Status.WAITING

    await until(rests)


def ids(page: object) -> list[str]:
    return re.findall(r'<tr id="run-([^"]+)"', page.text)


@async_test
async def test_home_says_what_runs_and_what_needs_somebody():
    async with browsing() as person:
        empty = text_of(await person.open("/"))
        assert "Nothing has run here yet" in empty
        assert "Run greet" in empty
        started = await person.send("/", workflow="greet")
        assert started.headers["location"].endswith("?done=started")
        await some(person)
        page = await person.open("/")
        words = text_of(page)
        assert "Failed in the last hour 1" in words
        assert "approve signal for waits-1 of approve" in words
        assert "ValueError in refuse 1 run " in words
        assert "failed-1" in ids(page)
        assert 'aria-label="Runs begun in each of the last 24 hours: 0, ' in page.text
        counts = (await person.open("/api/v1/run_hours")).json()
        assert (counts["counts"]["FAILED"][-1], sum(counts["counts"]["WAITING"]), counts["is_exact"]) == (1, 1, True)


@async_test
async def test_home_names_workers_that_are_late_and_a_queue_that_is_nearly_full(monkeypatch: pytest.MonkeyPatch):
    async with browsing("store") as person:
        await ended(person, await person.well.start(greet, workspace="acme", execution_id="g"))
        await person.well.workspaces.put_tier("small", queue_depth=10)
        await person.well.workspaces.put("acme", tier="small")
        await person.well.workspaces.pause("acme")
        for _ in range(8):
            await person.well.enqueue(greet, "Ada", workspace="acme")
        assert "items wait" not in text_of(await person.open("/?workspace=acme"))
        await person.well.enqueue(greet, "Ada", workspace="acme")
        words = text_of(await person.open("/?workspace=acme"))
        assert "9 of 10 items wait" in words
        assert "not seen since" not in words
        monkeypatch.setattr(home, "LATE_SECONDS", -1)
        seen = await person.well.queue.workers()
        words = text_of(await person.open("/?workspace=acme"))
        assert all(f"worker {each.name} not seen since" in words for each in seen)
        assert seen


@async_test
async def test_a_search_opens_the_run_or_lists_those_with_a_part_of_the_id():
    async with browsing() as person:
        await some(person)
        assert (await person.open("/search?q=failed-1")).headers["location"] == "/runs/failed-1"
        listed = (await person.open("/search?q=ed-1")).headers["location"]
        assert ids(await person.open(listed)) == ["failed-1"]
        assert (await person.open("/search?q=%20")).headers["location"] == "/runs"


@async_test
async def test_runs_are_filtered_by_each_field_and_the_filter_can_be_removed():
    async with browsing() as person:
        await some(person)
        assert ids(await person.open("/runs")) == ["waits-1", "failed-1", "done-1"]
        for text, expected in (
            ("status:FAILED", ["failed-1"]),
            ("workflow:greet", ["done-1"]),
            ("status:failed", ["failed-1"]),
            ("id:-1 status:COMPLETED", ["done-1"]),
            ("age<1h", ["waits-1", "failed-1", "done-1"]),
            ("age>1h", []),
            ("duration>10m", []),
            ("duration<10m id:waits", ["waits-1"]),
            ("parent:nobody", []),
            ("error:valueERROR", ["failed-1"]),
            ('error:"no such order"', ["failed-1"]),
            ("error:Timeout", []),
            ("error:ValueError status:COMPLETED", []),
            ("tenant:acme status:COMPLETED", ["done-1"]),
            ("tenant:rival", []),
        ):
            page = await person.open("/runs", params={"filter": text})
            assert (page.status_code, ids(page)) == (200, expected), text
        none = await person.open("/runs", params={"filter": "age>1h status:FAILED"})
        assert "No run matches this filter" in text_of(none)
        assert "Without age&gt;1h" in none.text
        for text in ("age:1h", "status<1h", "age<soon", "nothing:1", "age<1h age<2h"):
            bad = await person.open("/runs", params={"filter": text})
            assert bad.status_code == 422, text
            assert "column" in text_of(bad)


@async_test
async def test_tabs_say_how_many_runs_have_each_status():
    async with browsing() as person:
        await some(person)
        words = text_of(await person.open("/run-counts"))
        assert "Completed 1" in words
        assert "Failed 1" in words
        counts = (await person.open("/api/v1/run_counts?workflow=greet")).json()["items"]
        assert {each["status"]: each["count"] for each in counts if each["count"]} == {"COMPLETED": 1}
        assert {each["status"] for each in counts} == set(Status)


@async_test
async def test_an_open_list_keeps_its_rows_and_says_how_many_are_new():
    async with browsing() as person:
        await some(person)
        page = await person.open("/runs")
        assert "anchor=waits-1" in page.text
        assert "new-runs" not in page.text
        for number in range(2):
            await ended(person, await person.well.start(greet, workspace="acme", execution_id=f"later-{number}"))
        again = await person.open("/runs?anchor=waits-1", headers={"HX-Request": "true"})
        assert ids(again) == ["waits-1", "failed-1", "done-1"]
        assert "2 new" in text_of(again)
        waiting = await person.open("/runs?filter=status:COMPLETED&anchor=waits-1")  # the newest run matches the filter no longer
        assert ids(waiting) == ["done-1"]
        assert "2 new" in text_of(waiting)
        gone = await person.open("/runs?anchor=deleted-1")
        assert (gone.status_code, len(ids(gone))) == (200, 5)
        assert "unknown-1" not in (await person.open("/runs?anchor=unknown-1")).headers.get("location", "")


@async_test
async def test_columns_are_chosen_and_pages_follow_each_other():
    async with browsing() as person:
        for number in range(55):
            await person.well.create(f"r-{number:02}", "acme")
        first = await person.open("/runs?columns=parent,updated")
        assert "Last commit" in text_of(first)
        assert "Commits" not in re.findall(r"<th[^>]*>([^<]+)", first.text)
        following = re.search(r'id="next" rel="next" href="([^"]+)"', first.text)
        assert following is not None
        second = await person.open(following[1].replace("&amp;", "&"))
        assert len(ids(first)) == 50
        assert len(ids(second)) == 5
        assert not set(ids(first)) & set(ids(second))
        assert (await person.open("/runs?cursor=forged")).status_code == 400


@async_test
async def test_what_runs_wait_for_is_a_column():
    async with browsing() as person:
        await some(person)
        assert "waits for signal" in text_of(await person.open("/runs?columns=waiting"))
        words = text_of(await person.open("/runs?columns=workspace,attempts,now,waiting&filter=status:FAILED"))
        assert "Workspace Attempts Step now Waiting on Failed refused v1 failed-1 acme 1" in words


@async_test
async def test_columns_and_a_range_of_time_are_remembered():
    async with browsing() as person:
        await some(person)
        await person.open("/runs?columns=waiting,workspace")
        assert "Workspace Waiting on" in text_of(await person.open("/runs"))
        assert (await person.open("/runs?younger=soon")).status_code == 422
        chosen = await person.open("/runs", params={"filter": "status:FAILED age<15m", "younger": "3h", "older": "2h"})
        assert chosen.headers["location"] == "/runs?filter=status%3AFAILED+age%3C3h+age%3E2h"
        again = await person.open("/runs")
        assert "Last 3h until 2h ago" in text_of(again)
        assert ids(again) == []
        assert len(ids(await person.open("/runs?filter=age<1h"))) == 3
        without = re.search(r'href="([^"]+)" aria-label="Remove age&gt;2h"', again.text)
        assert without is not None
        await person.open(without[1].replace("&amp;", "&"))
        assert len(ids(await person.open("/runs"))) == 3


@async_test
async def test_a_view_is_saved_under_a_name_and_forgotten():
    async with browsing() as person:
        await some(person)
        saved = await person.send("/run-views", name="Broken", filter="status:FAILED", columns="now", action="save")
        assert saved.headers["location"] == "/runs?filter=status%3AFAILED&columns=now"
        page = await person.open("/runs")
        assert '<a href="/runs?filter=status%3AFAILED&amp;columns=now">Broken</a>' in page.text
        assert (await person.send("/run-views", name="", filter="", action="save")).status_code == 422
        assert (await person.send("/run-views", name="x" * 60, filter="id:" + "y" * 3_000, action="save")).status_code == 422
        await person.send("/run-views", name="Broken", action="forget")
        assert "Broken" not in (await person.open("/runs")).text
        person.client.cookies.set("stepwell_views", "%7Bno", domain="stepwell.test")
        assert (await person.open("/runs")).status_code == 200


@async_test
async def test_an_export_has_all_that_match_and_no_formula():
    async with browsing() as person:
        await some(person)
        await person.well.create("=HYPERLINK(1)", "acme")
        table = (await person.open("/run-export?format=csv")).text.splitlines()
        assert len(table) == 5
        assert table[1].startswith("'=HYPERLINK(1)")
        lines = (await person.open("/run-export?format=jsonl&filter=status:FAILED")).text.splitlines()
        assert [json.loads(line)["execution_id"] for line in lines] == ["failed-1"]
        assert (await person.open("/run-export?format=xml")).status_code == 400
        assert (await person.open("/run-export?filter=nothing")).status_code == 422


async def carried_out(person: Person, **fields: str) -> httpx.Response:
    """Send the form that acts on many runs, and open the page that it leads to."""
    sent = await person.send("/bulk/run", **fields)
    return await person.open(sent.headers["location"])


@async_test
async def test_an_action_on_many_shows_first_what_it_would_do():
    async with browsing() as person:
        await some(person)
        assert (await person.send("/bulk", action="retry")).status_code == 422
        planned = await person.send("/bulk", action="retry", filter="status:FAILED", all="all")
        assert "Retry 1 run?" in text_of(planned)
        assert "failed-1" in text_of(planned)
        fields = dict(re.findall(r'type="hidden" name="(hash|count|action|filter)" value="([^"]*)"', planned.text))
        assert (await person.send("/bulk/run", **fields)).status_code == 422
        done = await carried_out(person, **fields, reason="the bank is back")
        assert "1 of 1 done" in text_of(done)
        reasons = [each.reason for each in await person.well.requests.audit("acme") if each.action == "bulk_runs"]
        assert reasons == ["the bank is back", None]
        stale = await person.send("/bulk/run", **{**fields, "hash": "0" * 32}, reason="again")
        assert stale.status_code in (412, 422)


@async_test
async def test_selected_runs_are_acted_on_and_foreign_ones_are_not():
    async with browsing() as person:
        await some(person)
        await ended(person, await person.well.start(greet, workspace="rival", execution_id="of-rival"))
        assert (await person.send("/bulk", action="cancel", id="of-rival")).status_code == 404
        planned = await person.send("/bulk", action="cancel", id="done-1")
        fields = dict(re.findall(r'type="hidden" name="(hash|count|action|id)" value="([^"]*)"', planned.text))
        done = text_of(await carried_out(person, **fields, reason="a try"))
        assert "0 of 1 done" in done
        assert "1 was refused" in done


@async_test
async def test_more_than_a_hundred_runs_need_their_number():
    async with browsing() as person:
        refusal = await person.send("/bulk/run", action="cancel", filter="status:WAITING", hash="x", count="101", reason="all")
        assert refusal.status_code == 422
        assert "Type the number 101" in text_of(refusal)


@async_test
async def test_a_tenant_in_the_filter_is_what_the_token_may_see():
    async with browsing("rival") as person:
        await ended(person, await person.well.start(greet, workspace="acme", execution_id="of-acme"))
        await ended(person, await person.well.start(greet, workspace="rival", execution_id="of-rival"))
        assert ids(await person.open("/runs?filter=tenant:acme")) == []
        assert ids(await person.open("/runs?filter=tenant:rival")) == ["of-rival"]
        assert (await person.send("/bulk", action="cancel", filter="tenant:acme", all="all")).status_code == 422
    async with browsing("store") as person:
        await ended(person, await person.well.start(greet, workspace="acme", execution_id="of-acme"))
        page = await person.open("/runs?filter=tenant:acme")
        assert ids(page) == ["of-acme"]
        assert "/runs/of-acme?workspace=acme" in page.text


async def act_on(person: Person, action: str, execution_id: str) -> str:
    """Act on one selected run by the bar of the list; return the words of the page at the end."""
    planned = await person.send("/bulk", action=action, id=execution_id)
    fields = dict(re.findall(r'type="hidden" name="(hash|count|action|id)" value="([^"]*)"', planned.text))
    return text_of(await carried_out(person, **fields, reason="for the test"))


@async_test
async def test_selected_runs_are_paused_resumed_forked_and_lose_their_payloads():
    async with browsing("store") as person:
        await ended(person, await person.well.start(greet, "Ada", execution_id="done-1"))
        waiting = await person.well.start(approve, execution_id="waits-1")
        assert "Pause: 1 of 1 done" in await act_on(person, "pause", "waits-1")
        pause = (await waiting.progress()).pause
        assert pause is not None
        assert pause.reason == "for the test"
        assert "Resume: 1 of 1 done" in await act_on(person, "resume", "waits-1")
        assert (await waiting.progress()).pause is None
        assert "Fork: 1 of 1 done" in await act_on(person, "fork", "waits-1")
        assert len([each for each in await person.well.executions.list() if each.workflow_id == "approve"]) == 2
        assert "Delete the payloads: 1 of 1 done" in await act_on(person, "delete_payloads", "done-1")
        assert (await person.open("/api/v1/runs/done-1/steps")).status_code == 410
        assert (await person.send("/bulk", action="nonsense", id="done-1")).status_code == 422


@async_test
async def test_the_demo_is_run_from_the_empty_home_by_whoever_may_store_definitions():
    async with browsing() as person:
        assert 'disabled title="This needs a token for all of the store">Run the demo' in (await person.open("/")).text
        assert (await person.send("/demo")).status_code == 403
    async with browsing("store") as person:
        assert "Run the demo" in text_of(await person.open("/"))
        for _ in range(2):  # the definition is stored once
            started = await person.send("/demo")
            assert started.headers["location"].endswith("?done=started")
        execution_id = started.headers["location"].removeprefix("/runs/").partition("?")[0]
        assert "demo v1" in text_of(await person.open(f"/runs/{execution_id}"))
        await person.well.run(execution_id).signal("taste", {"by": "store", "is_approved": True})
        await ended(person, person.well.run(execution_id))
        assert await person.well.run(execution_id).status() == Status.COMPLETED


@async_test
async def test_a_bulk_action_says_that_it_has_not_looked_at_all_runs():
    async with browsing() as person:
        await asyncio.gather(*(person.well.create(f"sound-{number}", "acme") for number in range(101)))
        planned = await person.send("/bulk", action="cancel", filter="has:receipt-gap", all="all")
        assert "No run matches among those looked at" in text_of(planned)
        planned = await person.send("/bulk", action="cancel", filter="workflow:none", all="all")
        assert "No run matches." in text_of(planned)
