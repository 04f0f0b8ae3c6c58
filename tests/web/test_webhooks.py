"""Outgoing webhooks: enqueued in the commit that ends a run, signed, sent by one worker, and tried again for three days."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from base64 import b64decode, b64encode
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from tests.web.servers import approve, async_test, fail, greet, served

from stepwell import AsyncStepwell, FakeClock, InvalidInput, NotFound, Stepwell
from stepwell.model.commit import StateBatch
from stepwell.model.scoped_operations import Put
from stepwell.model.status import FINAL
from stepwell.model.webhook import EVENTS, RETRY_SECONDS, payload_of, signature_of
from stepwell.pipeline.operations import Write
from stepwell.runtime.webhook_sender import post
from stepwell.testing.store_access import parts_of, run_operation, store_under, worker_of

__all__ = ["approve", "fail", "greet"]

URL = "https://shop.example.org/hooks"


async def end(well: AsyncStepwell, execution_id: str, status: str = "COMPLETED") -> None:
    await well.create(execution_id)
    async with well.transaction(execution_id) as tx:
        tx.set_status("RUNNING")
        tx.set_status(status)


@pytest.mark.parametrize("place", ["memory", "sqlite", "postgres", "redis"])
def test_a_message_lands_with_the_end_of_a_run_and_only_then(place: str, tmp_path: Path, request: pytest.FixtureRequest):
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/well.db"}
    asyncio.run(check_messages(urls.get(place) or request.getfixturevalue(f"{place}_url")))


async def check_messages(url: str) -> None:
    async with AsyncStepwell(url, worker=False) as well:
        endpoint, secret = await well.webhooks.put("shop", URL, events=["run.failed"])
        assert secret is not None
        assert secret.startswith("whsec_")
        assert await well.webhooks.put("shop", URL, events=["run.failed"]) == (endpoint, None)
        await end(well, "good")
        await well.create("running")
        await end(well, "bad", "FAILED")
        [delivery] = await well.webhooks.deliveries()
        assert (delivery.type, delivery.execution_id, delivery.revision) == ("run.failed", "bad", 1)
        body = json.loads(payload_of(delivery))
        assert body["data"] == {"execution_id": "bad", "revision": 1}
        assert (await well.verify("bad")).ok
        assert await well.webhooks.within("rival").deliveries() == []


@async_test
async def test_every_way_to_end_has_a_message():
    async with AsyncStepwell("memory://", worker=False) as well:
        await well.webhooks.put("shop", URL)
        for status in FINAL:
            await end(well, status.lower(), status)
        found = {each.execution_id: each.type for each in await well.webhooks.deliveries()}
        assert found == {status.lower(): f"run.{status.lower()}" for status in FINAL}
        assert set(found.values()) == set(EVENTS)


@async_test
async def test_a_damaged_message_holds_no_other_one_up(caplog: pytest.LogCaptureFixture):
    async with AsyncStepwell("memory://", worker=False) as well:
        await well.webhooks.put("shop", URL)
        await end(well, "first")
        [first] = await well.webhooks.deliveries()
        path = next(path for path in store_under(well).scopes("default") if path.startswith("webhook_delivery/"))
        store_under(well).write((StateBatch((Put(path, first.delivery_id, Raw(b'{"endpoint": 7}')),)),))
        await end(well, "second")
        assert [each.execution_id for each in await well.webhooks.deliveries()] == ["second"]
        [claimed] = await run_operation(well, parts_of(well).webhooks.claim_due(10))
        assert claimed.delivery.execution_id == "second"
        assert first.delivery_id in caplog.text


@async_test
async def test_a_workflow_of_a_worker_sends_its_message():
    sent: list[str] = []
    async with served() as api:
        [sender] = [each for each in worker_of(api.well).companions if each.name == "the sender of webhooks"]
        told = asyncio.Event()
        loop = asyncio.get_running_loop()

        def receive(claimed: object) -> None:
            sent.append(claimed.delivery.execution_id)
            loop.call_soon_threadsafe(told.set)

        sender._post = receive
        await api.well.webhooks.within("acme").put("shop", URL)
        await api.well.start(greet, workspace="acme", execution_id="a")
        sender.wake()
        await asyncio.wait_for(told.wait(), 10)
        assert sent == ["a"]
        while await api.well.webhooks.within("acme").deliveries():  # noqa: ASYNC110 - another task's write
            await asyncio.sleep(0.01)
        assert api.well.write_statistics.webhooks == {"accepted": 1}


@async_test
async def test_a_delivery_is_claimed_once_and_tried_again_for_three_days():
    clock = FakeClock()
    async with AsyncStepwell("memory://", worker=False, clock=clock) as well:
        await well.webhooks.put("shop", URL)
        await end(well, "a")
        do, drive = parts_of(well).webhooks, partial(run_operation, well)
        seconds = 0
        for attempt in range(1, len(RETRY_SECONDS) + 2):
            [claimed] = await drive(do.claim_due(10))
            assert claimed.delivery.attempts == attempt
            assert await drive(do.claim_due(10)) == []
            await drive(do.settle(claimed, "the receiver answered with status 500"))
            if attempt <= len(RETRY_SECONDS):
                clock.advance(RETRY_SECONDS[attempt - 1])
                seconds += RETRY_SECONDS[attempt - 1]
        assert seconds >= 3 * 86_400
        [given_up] = await well.webhooks.deliveries()
        assert (given_up.next_at, given_up.last_error) == (None, "the receiver answered with status 500")
        assert (await well.webhooks.get("shop")).is_disabled
        await end(well, "b")
        assert len(await well.webhooks.deliveries()) == 1
        await well.webhooks.put("shop", URL)
        await well.webhooks.replay(given_up.delivery_id)
        [again] = await drive(do.claim_due(10))
        assert again.delivery.delivery_id == given_up.delivery_id
        await drive(do.settle(again, None))
        assert await well.webhooks.deliveries() == []
        with pytest.raises(NotFound):
            await well.webhooks.replay(given_up.delivery_id)


def finished(operation: Any, answer: object) -> object:
    """Drive an operation that only reads from here to its end; return its result."""
    try:
        while True:
            answer = operation.send(answer).query()
    except StopIteration as end:
        return end.value


@async_test
async def test_of_two_workers_that_read_the_same_delivery_one_claims_it():
    async with AsyncStepwell("memory://", worker=False) as well:
        await well.webhooks.put("shop", URL)
        await end(well, "a")
        do = parts_of(well).webhooks
        late = do.claim_due(10)
        effect = late.send(None)
        while not isinstance(effect, Write):
            effect = late.send(effect.query())
        assert len(await run_operation(well, do.claim_due(10))) == 1  # between the read of the late one and its write
        assert finished(late, parts_of(well).store.write([effect.unit])[0]) == []


@async_test
async def test_a_worker_that_dies_in_an_attempt_leaves_it_to_another():
    clock = FakeClock()
    async with AsyncStepwell("memory://", worker=False, clock=clock) as well:
        await well.webhooks.put("shop", URL)
        await end(well, "a")
        do, drive = parts_of(well).webhooks, partial(run_operation, well)
        [late] = await drive(do.claim_due(10))
        clock.advance(61)
        [second] = await drive(do.claim_due(10))
        assert second.delivery.delivery_id == late.delivery.delivery_id
        await drive(do.settle(late, "timeout"))  # changes nothing: the lease is another's
        [row] = await well.webhooks.deliveries()
        assert (row.attempts, row.last_error) == (2, None)


@async_test
async def test_a_rotation_signs_with_both_secrets_for_a_day():
    clock = FakeClock()
    async with AsyncStepwell("memory://", worker=False, clock=clock) as well:
        _, old = await well.webhooks.put("shop", URL)
        fresh = await well.webhooks.rotate("shop")
        await end(well, "a")
        await end(well, "b")
        do, drive = parts_of(well).webhooks, partial(run_operation, well)
        first = (await drive(do.claim_due(1)))[0]
        assert first.secrets == (fresh, old)
        clock.advance("25h")
        assert {each.secrets for each in await drive(do.claim_due(10))} == {(fresh,)}
        body = payload_of(first.delivery)
        text = signature_of(first.secrets, "msg_1", 7, body)
        expected = [b64encode(hmac.new(b64decode(each[6:]), b"msg_1.7." + body, sha256).digest()).decode() for each in (fresh, old)]
        assert text == " ".join(f"v1,{each}" for each in expected)


@async_test
async def test_a_private_address_and_another_scheme_get_nothing():
    async with AsyncStepwell("memory://", worker=False) as well:
        for url in ("http://example.org", "https://", "https://a:b@example.org", "file:///etc/passwd", "https://é.org"):
            with pytest.raises(InvalidInput):
                await well.webhooks.put("shop", url)
        with pytest.raises(InvalidInput, match="events are some of"):
            await well.webhooks.put("shop", URL, events=["everything"])
        await well.webhooks.put("shop", "https://127.0.0.1:1/hooks")
        await end(well, "a")
        [claimed] = await run_operation(well, parts_of(well).webhooks.claim_due(1))
        assert "not a public address" in str(post(claimed))


def test_another_process_knows_the_endpoints_when_it_opens(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/well.db"
    with Stepwell(url, worker=False) as well:
        well.webhooks.put("shop", URL)
    with Stepwell(url, worker=False) as other:
        other.create("a")
        with other.transaction("a") as tx:
            tx.set_status("RUNNING")
            tx.set_status("COMPLETED")
        assert [each.execution_id for each in other.webhooks.deliveries()] == ["a"]


@async_test
async def test_webhooks_are_managed_over_http():
    async with served(worker=False) as api, api.client() as client:
        hook = "/api/v1/webhooks/shop"
        made = (await client.put(hook, json={"url": URL})).json()
        assert made["secret"].startswith("whsec_")
        assert "secret" not in (await client.get(hook)).json()
        assert (await client.put(hook, json={"url": URL})).json()["secret"] is None
        assert (await client.post(f"{hook}/rotate")).json()["secret"] != made["secret"]
        assert [each["name"] for each in (await client.get("/api/v1/webhooks")).json()["items"]] == ["shop"]
        assert (await client.put(hook, json={"url": "http://127.0.0.1"})).status_code == 422
        await api.well.start(approve, workspace="acme", execution_id="a")
        assert (await client.get("/api/v1/webhook_deliveries")).json()["items"] == []
        assert (await client.delete(hook)).status_code == 204
        assert (await client.get(hook)).status_code == 404


def message(secret: str, message_id: str, body: bytes, at: float) -> dict[str, str]:
    """The headers of a message, signed by the rules of Standard Webhooks."""
    signature = signature_of([secret], message_id, int(at), body)
    return {"webhook-id": message_id, "webhook-timestamp": str(int(at)), "webhook-signature": signature}


@async_test
async def test_a_signed_message_is_enqueued_once_and_any_other_is_refused_in_the_same_words():
    async with served(worker=False) as api, api.client() as admin, api.client(None) as sender:
        made = (await admin.put("/api/v1/webhook_receivers/orders", json={"workflow": "greet", "queue": "mail"})).json()
        secret, path, body, now = made["secret"], made["path"], b'"Ada"', time.time()
        assert path == "/hooks/acme/orders"
        assert secret.startswith("whsec_")
        assert (await admin.put("/api/v1/webhook_receivers/orders", json={"workflow": "greet"})).json()["secret"] is None
        headers = message(secret, "msg_1", body, now)
        first = await sender.post(path, content=body, headers=headers)
        assert (first.status_code, first.json()["is_new"]) == (202, True), first.text
        again = await sender.post(path, content=body, headers=message(secret, "msg_1", body, now + 1))
        assert (again.json()["item_id"], again.json()["is_new"]) == (first.json()["item_id"], False)
        [item] = await api.well.queue.list(workspace="acme")
        assert (item.input, item.workflow_id) == ("Ada", "greet")
        other = await sender.post(path, content=b'"Eve"', headers=message(secret, "msg_1", b'"Eve"', now))
        assert other.status_code == 409
        rotated = {**headers, "webhook-signature": f"v1,bm9uZQ== {headers['webhook-signature']}"}
        assert (await sender.post(path, content=body, headers=rotated)).status_code == 202
        refusals = [
            await sender.post(path, content=b'"Eve"', headers=headers),
            await sender.post(path, content=body),
            await sender.post(path, content=body, headers=message(secret, "msg_2", body, now - 400)),
            await sender.post(path, content=body, headers={**headers, "webhook-id": "msg_3"}),
            await sender.post("/hooks/rival/orders", content=body, headers=headers),
            await sender.post("/hooks/acme/nothing", content=body, headers=headers),
        ]
        assert {each.status_code for each in refusals} == {401}
        assert len({each.json()["detail"] for each in refusals}) == 1
        assert len(await api.well.queue.list(workspace="acme")) == 1
        broken = await sender.post(path, content=b"{", headers=message(secret, "msg_4", b"{", now))
        assert (broken.status_code, broken.json()["code"]) == (400, "malformed")
        assert (await api.well.requests.audit("acme"))[0].actor == "webhook orders"
        assert [each["name"] for each in (await admin.get("/api/v1/webhook_receivers")).json()["items"]] == ["orders"]
        async with api.client("rival") as rival:
            assert (await rival.get("/api/v1/webhook_receivers")).json()["items"] == []
            assert (await rival.delete("/api/v1/webhook_receivers/orders")).status_code == 404
        assert (await admin.delete("/api/v1/webhook_receivers/orders")).status_code == 204
        assert (await sender.post(path, content=body, headers=headers)).status_code == 401
