"""What else than runs the API serves: queue, schedules, definitions, workspaces, state, conversations, locks, tokens, audit."""

from __future__ import annotations

import asyncio

from tests.web.servers import approve, async_test, fail, greet, served

__all__ = ["approve", "fail", "greet"]

V1 = "/api/v1"


@async_test
async def test_an_item_is_enqueued_once_per_idempotency_key():
    async with served(worker=False) as api, api.client() as client:
        headers = {"Idempotency-Key": "k"}
        body = {"workflow": "greet", "input": "Ada"}
        replies = await asyncio.gather(*(client.post(f"{V1}/queue/items", json=body, headers=headers) for _ in range(4)))
        assert {reply.status_code for reply in replies} == {202}
        assert len({reply.json()["item_id"] for reply in replies}) == 1
        assert [reply.headers.get("idempotency-replayed") for reply in replies].count("true") == 3
        other = await client.post(f"{V1}/queue/items", json={"workflow": "approve"}, headers=headers)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
        item = (await client.get(replies[0].headers["location"])).json()
        assert (item["status"], item["input"], item["workspace_id"]) == ("QUEUED", "Ada", "acme")
        assert (await client.get(f"{V1}/queue/items/{item['item_id']}/why")).json()["codes"]
        assert (await client.post(f"{V1}/queue/items/{item['item_id']}/cancel")).json()["status"] == "CANCELLED"
        assert (await client.post(f"{V1}/queue/items/{item['item_id']}/redrive")).status_code == 202
        assert (await client.get(f"{V1}/queue/lanes")).json()["items"][0]["depth"] == 1


@async_test
async def test_limits_of_all_the_store_need_a_token_for_all_of_it():
    async with served(worker=False) as api, api.client() as client, api.client("store") as store:
        assert (await client.put(f"{V1}/tiers/free", json={"concurrency": 100})).status_code == 403
        assert (await client.put(f"{V1}/workspaces/acme", json={"tier": "unlimited"})).status_code == 403
        assert (await store.put(f"{V1}/tiers/gold", json={"concurrency": 7})).json()["concurrency"] == 7
        assert (await store.put(f"{V1}/tiers/gold", json={"concurrency": None})).json()["concurrency"] is None
        assert (await store.put(f"{V1}/tiers/gold", json={"child_concurrency": 5})).json()["child_concurrency"] == 5
        assert (await store.put(f"{V1}/tiers/gold", json={"child_concurrency": 0})).status_code == 422
        assert (await store.put(f"{V1}/workspaces/new", json={"tier": "gold"})).json()["tier"] == "gold"
        assert [each["workspace_id"] for each in (await client.get(f"{V1}/workspaces")).json()["items"]] == ["acme"]
        assert (await client.post(f"{V1}/workspaces/acme/pause")).json()["is_paused"] is True
        assert (await store.put(f"{V1}/queues/mail", json={"concurrency": 2})).json()["concurrency"] == 2
        assert (await store.post(f"{V1}/queues/mail/pause")).json()["is_paused"] is True
        assert (await store.get(f"{V1}/queue/demand")).status_code == 200
        assert (await store.get(f"{V1}/workers")).json()["items"] == []


@async_test
async def test_a_schedule_is_put_run_and_deleted():
    async with served(worker=False) as api, api.client() as client:
        body = {"workflow": "greet", "cron": "0 3 * * *", "zone": "Europe/Berlin"}
        assert (await client.put(f"{V1}/schedules/nightly", json=body)).json()["workspace_id"] == "acme"
        assert len((await client.get(f"{V1}/schedules/nightly/next?count=3")).json()["items"]) == 3
        assert (await client.post(f"{V1}/schedules/nightly/run")).status_code == 202
        assert (await client.post(f"{V1}/schedules/nightly/pause")).json()["is_paused"] is True
        assert (await client.post(f"{V1}/schedules/nightly/resume")).json()["is_paused"] is False
        span = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-03T00:00:00Z"}
        assert len((await client.post(f"{V1}/schedules/nightly/backfill", json=span)).json()["items"]) == 2
        assert (await client.delete(f"{V1}/schedules/nightly")).status_code == 204
        assert (await client.get(f"{V1}/schedules")).json()["items"] == []


@async_test
async def test_a_definition_is_stored_and_a_path_is_not_read():
    async with served(worker=False) as api, api.client("store") as store:
        document = {"name": "ship", "version": 1, "do": [{"wait": "1s"}]}
        assert (await store.put(f"{V1}/definitions/ship", json={"document": document})).json()["version"] == 1
        found = await store.get(f"{V1}/definitions/ship")
        assert found.json()["document"]["name"] == "ship"
        assert (await store.get(f"{V1}/definitions/ship", headers={"If-None-Match": found.headers["etag"]})).status_code == 304
        assert (await store.post(f"{V1}/definitions/ship/pause")).status_code == 204
        refused = await store.post(f"{V1}/runs", json={"workflow": "ship"})
        assert (refused.status_code, refused.json()["code"]) == (409, "SW-206")
        secret = await store.put(f"{V1}/definitions/ship", json={"document": "/etc/passwd.yaml"})
        assert (secret.status_code, secret.json()["code"]) == (422, "SW-105")


@async_test
async def test_state_is_written_at_the_revision_that_was_read():
    async with served(worker=False) as api, api.client() as client:
        key = f"{V1}/state/workflow:a%253Ab/keys/x%2Fy"
        assert (await client.put(key, json={"value": 1})).status_code == 428
        made = await client.put(key, json={"value": 1}, headers={"If-None-Match": "*"})
        assert made.status_code == 200
        assert (await client.put(key, json={"value": 2}, headers={"If-None-Match": "*"})).status_code == 412
        etag = (await client.get(key)).headers["etag"]
        assert (await client.put(key, json={"value": 2}, headers={"If-Match": etag})).status_code == 200
        assert (await client.put(key, json={"value": 3}, headers={"If-Match": etag})).status_code == 412
        assert (await client.delete(key, headers={"If-Match": etag})).status_code == 412
        assert await api.well.state.workspace("acme").workflow("a:b").get("x/y") == 2
        assert (await client.post(f"{V1}/state/workspace/keys/n/increment", json={"by": 5})).json()["value"] == 5
        assert [each["scope"] for each in (await client.get(f"{V1}/state")).json()["items"]] == ["workflow:a%3Ab", "workspace"]
        assert (await client.get(f"{V1}/state/workflow:a%253Ab/keys")).json()["items"] == ["x/y"]
        assert (await client.delete(key, headers={"If-Match": "*"})).status_code == 204
        assert (await client.get(key)).status_code == 404
        assert (await client.get(f"{V1}/state/global/keys")).status_code == 403
        assert (await client.get(f"{V1}/state/access/keys")).status_code == 422


@async_test
async def test_a_conversation_is_kept():
    async with served(worker=False) as api, api.client() as client:
        talk = f"{V1}/conversations/talk"
        assert (await client.put(talk, json={"state": {"step": 1}, "user": "ada"})).status_code == 200
        assert (await client.get(talk)).json()["state"] == {"step": 1}
        assert [each["conversation_id"] for each in (await client.get(f"{V1}/conversations?user=ada")).json()["items"]] == ["talk"]
        assert (await client.get(f"{talk}/turns")).json()["items"] == []
        assert (await client.delete(talk)).status_code == 204
        assert (await client.get(talk)).status_code == 404


@async_test
async def test_a_lock_has_one_holder_and_a_rising_fence():
    async with served(worker=False) as api, api.client() as client:
        lock = f"{V1}/locks/nightly"
        first = (await client.post(f"{lock}/acquire", json={"ttl_ms": 60_000, "holder": "a"})).json()
        assert (await client.post(f"{lock}/acquire", json={"holder": "a"})).json()["fence"] == first["fence"]
        held = await client.post(f"{lock}/acquire", json={"holder": "b"})
        assert (held.status_code, held.json()["code"]) == (409, "SW-204")
        assert "retry-after" in held.headers
        proof = {"holder": "a", "fence": first["fence"]}
        assert (await client.post(f"{lock}/renew", json=proof)).status_code == 200
        assert (await client.post(f"{lock}/release", json=proof)).status_code == 204
        assert (await client.post(f"{lock}/release", json=proof)).json()["code"] == "SW-203"
        assert (await client.post(f"{lock}/acquire", json={"holder": "b"})).json()["fence"] > first["fence"]


@async_test
async def test_an_admin_makes_and_revokes_tokens_of_its_workspace():
    async with served(worker=False) as api, api.client() as client:
        made = await client.post(f"{V1}/access_tokens", json={"name": "ci", "role": "operator", "ttl_ms": 60_000})
        assert made.status_code == 201
        identity = await api.well.access.identify(made.json()["text"])
        assert identity is not None
        assert (identity.workspace, identity.role) == ("acme", "operator")
        listed = await client.get(f"{V1}/access_tokens")
        assert made.json()["text"].rpartition("_")[2] not in listed.text
        assert (await client.delete(f"{V1}/access_tokens/{made.json()['token']['token_id']}")).status_code == 204
        assert await api.well.access.identify(made.json()["text"]) is None


@async_test
async def test_the_audit_has_every_change_with_its_reason():
    async with served(worker=False) as api, api.client() as client, api.client("operator") as operator:
        await operator.put(f"{V1}/runs/a", json={"workflow": "approve"}, headers={"Stepwell-Reason": "a customer called"})
        await operator.post(f"{V1}/runs/missing/cancel")
        await operator.get(f"{V1}/runs")
        page = (await client.get(f"{V1}/audit?limit=1")).json()
        rest = (await client.get(f"{V1}/audit", params={"cursor": page["next_cursor"]})).json()
        entries = page["items"] + rest["items"]
        assert [(each["action"], each["actor"], each["status"]) for each in entries] == [
            ("cancel_run", "operator", 404),
            ("put_run", "operator", 202),
        ]
        assert entries[1]["reason"] == "a customer called"


@async_test
async def test_a_bulk_action_does_what_its_dry_run_said_or_nothing():
    async with served() as api, api.client("operator") as client:
        for number in range(3):
            await client.put(f"{V1}/runs/r{number}", json={"workflow": "approve"})
        body = {"action": "cancel", "filter": "workflow:approve"}
        dry = (await client.post(f"{V1}/bulk", json=body)).json()
        assert (dry["is_dry_run"], dry["count"], sorted(dry["examples"])) == (True, 3, ["r0", "r1", "r2"])
        await client.put(f"{V1}/runs/later", json={"workflow": "approve"})
        moved = await client.post(f"{V1}/bulk", json={**body, "hash": dry["hash"]})
        assert (moved.status_code, moved.json()["count"]) == (412, 4)
        done = (await client.post(f"{V1}/bulk", json={**body, "hash": moved.json()["hash"]})).json()
        assert (done["done"], done["failures"]) == (4, [])
        for number in range(3):
            view = (await client.get(f"{V1}/runs/r{number}/result?wait=20")).json()
            assert view["status"] == "CANCELLED"
        again = (await client.post(f"{V1}/bulk", json=body)).json()
        failed = (await client.post(f"{V1}/bulk", json={**body, "hash": again["hash"]})).json()
        assert {each["code"] for each in failed["failures"]} == {"SW-205"}
        assert (await client.post(f"{V1}/bulk", json={"action": "cancel", "filter": ""})).status_code == 422
        assert (await client.post(f"{V1}/bulk", json={"action": "delete", "filter": "status:FAILED"})).status_code == 403


@async_test
async def test_a_bulk_action_reaches_no_other_workspace():
    async with served(worker=False) as api, api.client("rival") as rival:
        await api.well.start(approve, workspace="acme", execution_id="a")
        found = (await rival.post(f"{V1}/bulk", json={"action": "cancel", "filter": "workflow:approve"})).json()
        assert (found["count"], found["examples"]) == (0, [])
