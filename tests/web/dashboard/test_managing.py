"""The screens that manage a store: what they say, what they do, and who may."""

from __future__ import annotations

import asyncio
import re
from html import unescape
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from tests.web.dashboard.browsing import Person, browsing, text_of
from tests.web.dashboard.test_run import until
from tests.web.servers import approve, async_test, fail, greet, served

from stepwell import AsyncStepwell, workflow
from stepwell.flow import approval, define
from stepwell.web.api.route_table import TABLE
from stepwell.web.dashboard.cron_words import cron_words
from stepwell.web.dashboard.screens.audit import cell
from stepwell.web.dashboard.screens.definitions import fields_of
from stepwell.web.filters import filter_text, parse_filter

__all__ = ["approve", "fail", "greet"]


@workflow
async def parcel(address: str, grams: int = 100, is_express: bool = False) -> dict[str, object]:
    """Send a parcel."""
    return {"address": address, "grams": grams, "is_express": is_express}


async def reason_of(person: Person, workspace: str = "acme") -> str | None:
    """The reason of the newest entry of the audit."""
    return (await person.well.requests.audit(workspace))[0].reason


def etag_on(page: httpx.Response) -> str:
    """The ETag that the forms of a page send back."""
    [etag] = set(re.findall(r'name="etag" value="(\w+)"', page.text))
    return etag


@async_test
async def test_the_queues_say_why_a_workspace_waits():
    async with browsing("store", worker=False) as person:
        await person.well.enqueue(greet, workspace="acme", queue="mail")
        await person.well.queue.pause("mail")
        page = text_of(await person.open("/queues?workspace=acme"))
        assert "Why is acme waiting?" in page
        assert "queue_paused" in page
        assert "Tier enterprise" in page


@async_test
async def test_a_queue_is_paused_resumed_and_limited_with_a_reason():
    async with browsing("store", worker=False) as person:
        paused = await person.send("/queues/mail/pause", reason="the provider is down")
        assert paused.headers["location"] == "/queues/mail?done=paused"
        assert (await person.well.queue.get("mail")).is_paused
        assert await reason_of(person, "default") == "the provider is down"
        page = text_of(await person.open("/queues/mail?done=paused"))
        assert "It is paused." in page
        await person.send("/queues/mail/resume")
        assert not (await person.well.queue.get("mail")).is_paused
        etag = etag_on(await person.open("/queues/mail"))
        await person.send("/queues/mail/limits", concurrency="3", rate_per_second="", etag=etag)
        assert (await person.well.queue.get("mail")).concurrency == 3
        wrong = await person.send("/queues/mail/limits", concurrency="many")
        assert (wrong.status_code, "is no number" in text_of(wrong)) == (422, True)


@async_test
async def test_a_workspace_is_paused_by_its_admin_and_overridden_only_for_all_of_the_store():
    async with browsing("store", worker=False) as store:
        assert (await store.send("/workspace/pause?workspace=acme")).status_code == 303
        assert (await store.well.workspaces.get("acme")).is_paused
        assert "is paused: none of its items start" in text_of(await store.open("/queues?workspace=acme"))
        await store.send("/workspace/resume?workspace=acme")
        fields = {"limit": "concurrency", "value": "20", "for": "7d", "reason": "import of May"}
        etag = etag_on(await store.open("/queues?workspace=acme"))
        assert (await store.send("/workspace/override?workspace=acme", etag=etag, **fields)).status_code == 303
        assert (await store.well.workspaces.get("acme")).overrides["concurrency"].value == 20
        assert "import of May" in text_of(await store.open("/queues?workspace=acme"))
        without_end = await store.send("/workspace/override?workspace=acme", **{**fields, "for": ""})
        assert (without_end.status_code, "ends by itself" in text_of(without_end)) == (422, True)
        etag = etag_on(await store.open("/queues?workspace=acme"))
        await store.send("/workspace/end_override?workspace=acme", limit="concurrency", etag=etag)
        assert "import of May" not in text_of(await store.open("/queues?workspace=acme"))
    async with browsing("acme", worker=False) as admin:
        refused = await admin.send("/workspace/override", **fields)
        assert refused.status_code == 403
        assert (await admin.well.workspaces.get("acme")).overrides == {}


@async_test
async def test_an_item_says_why_it_waits_and_is_cancelled_and_redriven():
    async with browsing(worker=False) as person:
        item = await person.well.enqueue(greet, workspace="acme", delay="1h")
        page = await person.open(f"/items/{item.item_id}")
        assert "delayed" in text_of(page)
        await person.send(f"/items/{item.item_id}/cancel", reason="not needed")
        assert (await item.state()).status == "CANCELLED"
        assert await reason_of(person) == "not needed"
        await person.send(f"/items/{item.item_id}/redrive")
        assert (await item.state()).status == "QUEUED"


@async_test
async def test_a_schedule_is_made_paused_run_backfilled_and_deleted():
    async with browsing(worker=False) as person:
        made = await person.send("/new_schedule", name="nightly", workflow="greet", cron="30 2 * * *", zone="Europe/Berlin")
        assert made.headers["location"] == "/schedules/nightly?done=saved"
        page = text_of(await person.open("/schedules/nightly"))
        assert "every day at 02:30" in page
        assert page.count("02:30:00 CE") == 5
        await person.send("/schedules/nightly/pause")
        assert "None while it is paused" in text_of(await person.open("/schedules/nightly"))
        await person.send("/schedules/nightly/resume")
        await person.send("/schedules/nightly/run")
        span = {"start": "2026-01-01T00:00", "end": "2026-01-11T00:00"}
        counted = text_of(await person.open("/schedules/nightly", params=span))
        assert "10 ticks from" in counted
        [item] = await person.well.queue.list(workspace="acme")  # counting enqueues nothing
        assert f'href="/items/{item.item_id}" title="Queued' in (await person.open("/schedules/nightly")).text
        await person.send("/schedules/nightly/backfill", **span)
        assert len(await person.well.queue.list(workspace="acme")) == 11
        await person.send("/schedules/nightly/delete")
        assert "starts by itself" in text_of(await person.open("/schedules"))


@async_test
async def test_a_fault_in_a_form_names_its_field():
    async with browsing(worker=False) as person:
        wrong = await person.send("/new_schedule", name="n", workflow="greet", cron="99 2 * * *")
        assert wrong.status_code == 422
        assert "SW-101" in text_of(wrong)
        broken = await person.send("/new_schedule", name="n", workflow="greet", every="1h", input="{")
        assert (broken.status_code, "/input" in text_of(broken)) == (422, True)
        late = await person.send("/new_schedule", name="n", workflow="greet", every="soon")
        assert (late.status_code, "/every" in text_of(late)) == (422, True)
        assert await person.well.schedules.list() == []


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("30 2 * * *", "every day at 02:30"),
        ("0 9,18 * * 1-5", "Monday to Friday at 09:00 and 18:00"),
        ("*/15 * * * *", "every day every 15 minutes"),
        ("5 * * * *", "every day every hour, at minute 5"),
        ("0 0 1 * *", "on day 1 of every month at 00:00"),
        ("0 6 * * SUN,3", "every Sunday and Wednesday at 06:00"),
        ("0 0 24 12 *", "on 24 December at 00:00"),
        ("@weekly", "every Sunday at 00:00"),
        ("0 0 1-7 * 1", "0 0 1-7 * 1"),
        ("nonsense", "nonsense"),
    ],
)
def test_a_cron_expression_is_told_in_plain_words(expression: str, words: str):
    assert cron_words(expression).replace("every day every", "every day every") == words


@async_test
async def test_workers_are_shown_to_admins_of_the_store():
    async with browsing("store") as person:
        await asyncio.sleep(0)
        page = text_of(await person.open("/workers"))
        assert "could start now" in page
        refused = await person.send("/workers")
        assert refused.status_code == 405
    async with browsing("acme") as admin:
        assert (await admin.open("/workers")).status_code == 403


@async_test
async def test_a_worker_is_drained_resumed_and_marked_dead():
    async with browsing("store") as person:
        await person.well.start(approve, execution_id="a")

        async def is_there() -> bool:
            return bool(await person.well.queue.workers())

        await until(is_there)
        [worker] = await person.well.queue.workers()
        path = f"/workers/{quote(worker.name, safe='')}"
        page = await person.open(f"/workers?worker={quote(worker.name, safe='')}")
        assert re.search(rf"slots\W+\d+ of {worker.concurrency}", page.text)
        assert "Mark dead" in text_of(page)
        assert (await person.send(f"{path}/drain", reason="update")).status_code == 303
        assert (await person.send(f"{path}/resume")).status_code == 303
        assert (await person.send(f"{path}/mark_dead")).status_code == 409  # its heartbeat comes
        assert (await person.send(f"{path}/mark_dead", force="yes", reason="it hangs")).status_code == 303
        done = [(each.action, each.reason, each.status) for each in await person.well.requests.audit("default")]
        assert ("drain_worker", "update", 202) in done
        assert ("mark_worker_dead", "it hangs", 200) in done
        assert (await person.send("/workers/nobody/drain")).status_code == 404
    async with browsing("acme") as admin:
        assert (await admin.send("/workers/nobody/drain")).status_code == 403


@async_test
async def test_a_workflow_is_started_with_the_fields_of_its_form():
    async with browsing() as person:
        page = await person.open("/definitions/parcel")
        assert "Send a parcel." in text_of(page)
        [key] = set(re.findall(r'name="key" value="([^"]+)"', page.text))
        fields = {"field.address": "1 Main St", "field.grams": "250", "field.is_express": "on", "key": key}
        started = await person.send("/definitions/parcel/start", **fields)
        assert started.headers["location"] == f"/runs/{key}?done=started"
        assert await person.well.run(key).result(timeout=20) == {"address": "1 Main St", "grams": 250, "is_express": True}
        again = await person.send("/definitions/parcel/start", **fields)
        assert again.headers["location"] == f"/runs/{key}?done=started"
        assert len(await person.well.executions.list(workspace="acme", workflow="parcel")) == 1
        wrong = await person.send("/definitions/parcel/start", **{**fields, "field.grams": "heavy"})
        assert (wrong.status_code, "grams" in text_of(wrong)) == (422, True)
        pasted = await person.send("/definitions/parcel/start", input='{"address": "x"}', execution_id="own")
        assert pasted.headers["location"] == "/runs/own?done=started"


def test_a_schema_becomes_fields():
    schema = {
        "properties": {
            "a": {"type": "string", "enum": ["x", "y"]},
            "b": {"type": "object"},
            "c": {"type": "integer", "default": 3},
        },
        "required": ["a"],
    }
    found = fields_of(schema)
    assert [(each.name, each.kind, each.is_required, each.default) for each in found] == [
        ("a", "string", True, ""),
        ("b", "json", False, ""),
        ("c", "integer", False, "3"),
    ]
    assert fields_of(None) == fields_of({"type": "string"}) == fields_of({"properties": 3}) == []


@async_test
async def test_a_definition_has_its_picture_source_versions_and_findings():
    async with browsing("store", worker=False) as person:
        await person.well.definitions.put("name: ship\ndo:\n  - wait: 1s\n")
        await person.well.definitions.put("name: ship\nversion: 2\ndo:\n  - wait: 5s\n")
        assert "<svg" in (await person.open("/definitions/ship")).text.partition("<main")[2]
        assert "5s" in text_of(await person.open("/definitions/ship?tab=source"))
        changed = text_of(await person.open("/definitions/ship?tab=versions"))
        assert "From v1 to v2" in changed
        assert "+ version: 2" in changed
        await person.well.start("ship", execution_id="live")
        assert "v2 1 live" in text_of(await person.open("/definitions/ship?tab=versions"))
        assert "Sound" in text_of(await person.open("/definitions/ship?tab=check"))
        await person.send("/definitions/ship/pause")
        assert "no version of it can be started" in text_of(await person.open("/definitions/ship"))
        await person.send("/definitions/ship/activate")
        assert "no version of it" not in text_of(await person.open("/definitions/ship"))
        assert (await person.open("/definitions/none")).status_code == 404


@async_test
async def test_a_value_is_changed_only_after_its_difference_was_shown_and_nobody_else_changed_it():
    async with browsing(worker=False) as person:
        scope = person.well.state.workspace("acme")
        await scope.set("seats", {"free": 5})
        page = await person.open("/scopes/workspace/seats")
        [revision] = set(re.findall(r'name="revision" value="(\d+)"', page.text))
        edit = {"value": '{"free": 4}', "revision": revision, "ttl": ""}
        shown = await person.send("/scopes/workspace/seats", **edit)
        assert (shown.status_code, "Write it" in text_of(shown)) == (200, True)
        assert await scope.get("seats") == {"free": 5}
        await person.send("/scopes/workspace/seats", **edit, confirmed="yes", reason="sold")
        assert await scope.get("seats") == {"free": 4}
        assert await reason_of(person) == "sold"
        words = text_of(await person.open("/scopes/workspace/seats"))
        assert re.search(r"Changes by people When Who Did Why 20\S+ \S+ acme put entry sold Over HTTP", words)
        late = await person.send("/scopes/workspace/seats", **edit, confirmed="yes")
        assert late.status_code == 412
        assert (await person.send("/scopes/workspace/seats", **edit)).status_code == 412
        assert (await person.send("/scopes/workspace/seats/delete", revision=revision)).status_code == 412
        await person.send("/scopes/workspace", key="a/b", value="[1]", ttl="1h")
        assert await scope.get("a/b") == [1]
        assert "acme put entry" in text_of(await person.open("/scopes/workspace/a%2Fb"))
        assert (await person.send("/scopes/workspace", key="a/b", value="[2]")).status_code == 412
        assert 'href="/scopes/workspace/a%2Fb"' in (await person.open("/scopes/workspace")).text
        assert "workspace" in text_of(await person.open("/scopes"))


@async_test
async def test_the_receipts_of_a_run_are_verified_and_exported():
    async with browsing() as person:
        run = await person.well.start(greet, workspace="acme", execution_id="g")
        await run.result(timeout=20)
        assert (await person.open("/receipts?run=g")).headers["location"] == "/receipts/g"
        page = await person.open("/receipts/g")
        assert "Verified" in text_of(page)
        assert "Every receipt of this run is sound" in text_of(await person.open("/receipts?verify=1"))
        [link] = re.findall(r'href="(/api/v1/runs/g/proof[^"]*)"', page.text)
        assert (await person.open(link)).status_code == 200


@async_test
async def test_the_audit_is_shown_and_exported_without_formulas():
    async with browsing(worker=False) as person:
        await person.send("/workspace/pause", reason="=HYPERLINK(1)")
        assert "pause workspace" in text_of(await person.open("/audit"))
        export = await person.open("/audit/export")
        assert export.headers["content-disposition"] == 'attachment; filename="audit.csv"'
        assert "'=HYPERLINK(1)" in export.text
    async with browsing("operator") as operator:
        assert (await operator.open("/audit")).status_code == 403
        assert (await operator.open("/audit/export")).status_code == 403


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@a", "\tx"])
def test_a_cell_is_never_a_formula(text: str):
    assert cell(text) == f"'{text}"


@async_test
async def test_the_system_shows_each_caller_what_it_may_see():
    async with browsing("store") as store:
        page = text_of(await store.open("/system"))
        assert "memory://" in page
        assert "Open pages" in page
        assert "memory:// from the argument" in page
        assert "page_items 200 from the default" in page
    async with browsing("viewer") as viewer:
        page = text_of(await viewer.open("/system"))
        assert "shown to admins of all of the store" in page
        assert "shown to its admins" in page
        assert "memory://" not in page


@async_test
async def test_a_token_is_made_shown_once_and_revoked():
    async with browsing() as person:
        made = await person.send("/system/tokens", name="ci", role="operator", ttl="90d")
        [text] = set(re.findall(r"swt_\w+_[\w-]+", made.text))
        identity = await person.well.access.identify(text)
        assert identity is not None
        assert (identity.workspace, identity.role) == ("acme", "operator")
        assert text.rpartition("_")[2] not in (await person.open("/system")).text
        await person.send(f"/system/tokens/{identity.token_id}/revoke")
        assert await person.well.access.identify(text) is None
    async with browsing("operator") as operator:
        assert (await operator.send("/system/tokens", name="x")).status_code == 403


@async_test
async def test_a_webhook_is_made_changed_replayed_and_deleted():
    async with browsing() as person:
        url = "https://shop.example.org/hooks"
        made = await person.send("/system/webhooks", name="shop", url=url, event="run.failed", reason="orders")
        [secret] = set(re.findall(r"whsec_[\w+/=]+", made.text))
        assert secret not in (await person.open("/system")).text
        assert await reason_of(person) == "orders"
        await person.send("/system/webhooks", name="shop", url=f"{url}/2", event="run.completed")
        endpoint = await person.well.webhooks.within("acme").get("shop")
        assert (endpoint.url, endpoint.events) == (f"{url}/2", ("run.completed",))
        rotated = await person.send("/system/webhooks/shop/rotate")
        assert set(re.findall(r"whsec_[\w+/=]+", rotated.text)) != {secret}
        await person.well.create("done", "acme")
        async with person.well.transaction("done") as tx:
            tx.set_status("RUNNING")
            tx.set_status("COMPLETED")
        [delivery] = await person.well.webhooks.within("acme").deliveries()
        assert "Not accepted yet" in text_of(await person.open("/system"))
        replayed = await person.send(f"/system/deliveries/{delivery.delivery_id}/replay")
        assert "done=replayed" in replayed.headers["location"]
        assert (await person.send("/system/webhooks", name="shop", url="http://127.0.0.1", event="run.failed")).status_code == 422
        assert (await person.send("/system/webhooks", name="shop", url=url)).status_code == 422
        await person.send("/system/webhooks/shop/delete")
        assert await person.well.webhooks.within("acme").list() == []
    async with browsing("operator") as operator:
        assert (await operator.send("/system/webhooks", name="x", url=url, event="run.failed")).status_code == 403


@async_test
async def test_an_address_for_messages_is_made_shown_once_and_closed():
    async with browsing(worker=False) as person:
        made = await person.send("/system/receivers", name="orders", workflow="greet", reason="the shop")
        [secret] = set(re.findall(r"whsec_[\w+/=]+", made.text))
        assert "http://stepwell.test/hooks/acme/orders" in text_of(made)
        page = await person.open("/system")
        assert secret not in page.text
        assert "/hooks/acme/orders greet default" in text_of(page)
        assert await reason_of(person) == "the shop"
        assert "done=saved" in (await person.send("/system/receivers", name="orders", workflow="approve")).headers["location"]
        assert (await person.send("/system/receivers", name="", workflow="greet")).status_code == 422
        await person.send("/system/receivers/orders/delete")
        assert await person.well.webhooks.within("acme").receivers() == []
    async with browsing("operator") as operator:
        assert (await operator.send("/system/receivers", name="x", workflow="greet")).status_code == 403


@async_test
async def test_the_store_is_backed_up_and_the_backup_checked_on_the_page(tmp_path: Path):
    async with browsing("store", backups=tmp_path / "backups") as person:
        assert "on the machine of the server alone" in text_of(await person.open("/system"))
        assert (await person.send("/system/backups")).status_code == 404
    async with browsing("store", backups=tmp_path / "backups", open_admin=True) as person:
        assert "Nothing was backed up yet" in text_of(await person.open("/system"))
        assert (await person.send("/system/backups", reason="before")).status_code == 303
        assert await reason_of(person, "default") == "before"
        assert "The newest backup is whole" in text_of(await person.open("/system?check=1"))
    async with browsing("store", open_admin=True) as person:
        assert "keeps no backups" in text_of(await person.open("/system"))


@async_test
async def test_the_page_of_the_api_has_every_address():
    async with browsing() as person:
        page = await person.open("/api")
        for route in TABLE.routes:
            assert f'id="{route.name}"' in page.text, route.name
            assert route.summary in unescape(page.text), route.name


@async_test
async def test_a_limit_is_not_changed_on_top_of_a_change_of_somebody_else():
    async with browsing("store") as person:
        await person.well.queue.put("mail", concurrency=2)
        page = await person.open("/queues/mail")
        etag = etag_on(page)
        await person.well.queue.put("mail", concurrency=3)
        late = await person.send("/queues/mail/limits", concurrency="9", etag=etag)
        assert late.status_code == 412
        assert (await person.well.queue.get("mail")).concurrency == 3
        await person.well.schedules.put("nightly", greet, every=60)
        again = await person.send("/new_schedule", name="nightly", workflow="greet", every="5m")
        assert again.status_code == 412


async def waiting(person: Person, execution_id: str) -> None:
    async with asyncio.timeout(20):
        while await person.well.run(execution_id).status() != "WAITING":  # noqa: ASYNC110 - its worker has it there soon
            await asyncio.sleep(0.01)


HIRE = define("hire", approval("Hire Ada?", approvers=["ann", "bob"], name="hire"))


@async_test
async def test_an_approval_is_answered_on_the_page():
    async with browsing("operator") as person:
        await person.well.start(HIRE, workspace="acme", execution_id="h")
        await waiting(person, "h")
        page = text_of(await person.open("/approvals"))
        assert "Hire Ada?" in page
        await person.send("/approvals/answer", run="h", name="hire", by="ann", decision="approve", comment="yes")
        result = await person.well.run("h").result(timeout=20)
        assert result["is_approved"] is True
        assert await reason_of(person) == "yes"
        assert "No run waits for a person" in text_of(await person.open("/approvals"))


@async_test
async def test_an_approval_is_answered_on_the_page_of_its_run():
    async with browsing("operator") as person:
        only = define("only", approval("Go?", name="go"))
        await person.well.start(only, workspace="acme", execution_id="o")
        await waiting(person, "o")
        page = await person.open("/runs/o")
        assert 'name="decision" value="reject"' in page.text
        await person.send("/runs/o/signal", name="go", decision="reject", comment="not now")
        assert (await person.well.run("o").result(timeout=20))["decisions"][0]["by"] == "operator"


@async_test
async def test_a_link_answers_an_approval_once_and_without_an_account():
    async with browsing("operator") as person, person.api.client(None) as ann:
        await person.well.start(HIRE, workspace="acme", execution_id="h")
        await waiting(person, "h")
        shown = await person.send("/approvals/link", **{"run": "h", "name": "hire", "by": "bob", "for": "1d"})
        [path] = re.findall(r"http://stepwell\.test(/links/[\w-]+)", shown.text)[:1]
        for _ in range(2):  # looking at it uses nothing up
            asked = await ann.get(path)
            assert (asked.status_code, "Hire Ada?" in asked.text) == (200, True)
        undecided = await ann.post(path, data={})
        assert undecided.status_code == 422
        done = await ann.post(path, data={"decision": "approve", "by": "mallory"})
        assert (done.status_code, "Thank you" in done.text) == (200, True)
        result = await person.well.run("h").result(timeout=20)
        assert [each["by"] for each in result["decisions"]] == ["bob"]
        assert (await ann.post(path, data={"decision": "approve"})).status_code == 410
        assert (await ann.get(path)).status_code == 410
        [entry] = [each for each in await person.well.requests.audit("acme") if each.action == "answer_link"]
        assert entry.actor == "bob (by link of operator)"


@async_test
async def test_a_link_to_a_run_that_has_ended_says_so_and_an_unknown_one_tells_nothing():
    async with served() as api, api.client(None) as client:
        await api.well.start(approve, workspace="acme", execution_id="a")
        secret, _ = await api.well.access.create_link("a", "approve", workspace="acme")
        await api.well.run("a").cancel()
        over = await client.get(f"/links/{secret}")
        assert (over.status_code, "has ended" in over.text) == (410, True)
        assert (await client.get("/links/x")).status_code == 410
        stolen, _ = await api.well.access.create_link("a", "approve", workspace="rival")
        assert "has ended" in (await client.get(f"/links/{stolen}")).text


@async_test
async def test_a_page_says_what_the_store_says_when_it_is_away():
    well = AsyncStepwell("redis://127.0.0.1:1/0?connect_timeout=1", worker=False)
    from tests.web.servers import Api

    from stepwell import Identity, Role, stepwell_app

    app = stepwell_app(well, identify=lambda _: Identity(name="a", role=Role.ADMIN, workspace=None))
    async with Api(app, well, {}).client(None) as client:
        for path in (
            "/queues",
            "/schedules",
            "/workers",
            "/definitions",
            "/scopes",
            "/receipts",
            "/audit",
            "/approvals",
            "/system",
        ):
            page = await client.get(path)
            assert page.status_code == 503, path
            assert "SW-3" in text_of(page)
            assert "Traceback" not in page.text


@pytest.mark.parametrize("name", ["plain", "two words", 'say "hi"', "back\\slash", 'end\\"', "\\", '"', "a:b"])
def test_a_filter_names_whatever_a_thing_is_called(name: str):
    assert parse_filter(filter_text({"workflow": name}), {"workflow": None}) == {"workflow": name}
    assert parse_filter(filter_text({"workflow": name, "status": "FAILED"}), {"workflow": None, "status": None})["workflow"] == name
