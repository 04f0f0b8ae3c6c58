"""Records of the server in each store: keys that land with their run, tokens, tickets, locks, the audit, cursors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.web.servers import approve, fail, greet, served

__all__ = ["approve", "fail", "greet"]

V1 = "/api/v1"


@pytest.mark.parametrize("place", ["memory", "sqlite", "postgres", "redis"])
def test_the_server_works_on_each_store(place: str, tmp_path: Path, request: pytest.FixtureRequest):
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/well.db"}
    asyncio.run(check(urls.get(place) or request.getfixturevalue(f"{place}_url")))


async def check(url: str) -> None:
    async with served(url) as api, api.client() as client:
        headers, body = {"Idempotency-Key": "k"}, {"workflow": "greet", "input": "Ada"}
        replies = await asyncio.gather(*(client.post(f"{V1}/runs", json=body, headers=headers) for _ in range(6)))
        assert {reply.status_code for reply in replies} == {202}
        assert len({reply.text for reply in replies}) == 1
        assert [reply.headers.get("idempotency-replayed") for reply in replies].count("true") == 5
        execution_id = replies[0].json()["execution_id"]
        view = (await client.get(f"{V1}/runs/{execution_id}/result?wait=30")).json()
        assert view["output"] == "Hello, Ada!"
        assert (await client.get(f"{V1}/runs/{execution_id}/verification")).json()["ok"]
        assert len((await client.get(f"{V1}/runs")).json()["items"]) == 1
        refused = await client.post(f"{V1}/runs", json={"workflow": "approve"}, headers=headers)
        assert refused.json()["code"] == "idempotency_key_reused"
        identity = await api.well.access.identify(api.tokens["acme"])
        assert identity is not None
        ticket = await api.well.access.create_ticket(identity)
        assert [await api.well.access.redeem_ticket(ticket) for _ in range(2)] == [identity, None]
        lock = {"holder": "a", "ttl_ms": 60_000}
        held = (await client.post(f"{V1}/locks/l/acquire", json=lock)).json()
        assert (await client.post(f"{V1}/locks/l/acquire", json={"holder": "b"})).status_code == 409
        proof = {"holder": "a", "fence": held["fence"]}
        assert (await client.post(f"{V1}/locks/l/release", json=proof)).status_code == 204
        made = await client.put(f"{V1}/state/workspace/keys/n", json={"value": 1}, headers={"If-None-Match": "*"})
        stale = {"If-Match": '"999"'}
        assert (await client.delete(f"{V1}/state/workspace/keys/n", headers=stale)).status_code == 412
        assert (await client.delete(f"{V1}/state/workspace/keys/n", headers={"If-Match": made.headers["etag"]})).status_code == 204
        audit = (await client.get(f"{V1}/audit?limit=200")).json()["items"]
        assert [each["action"] for each in audit][-1] == "start_run"
        assert {each["actor"] for each in audit} == {"acme"}
