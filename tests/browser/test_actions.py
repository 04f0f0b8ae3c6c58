"""Actions on the pages: with keys alone, without JavaScript, on a phone, and while the page follows by itself."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
from playwright.async_api import Page, expect
from tests.browser.chromium import PHONE, Chromium, Visit, in_browser
from tests.browser.site import Site
from tests.support.proxy import Proxy, Verdict

V1 = "/api/v1"
_FOCUSED = "(e => (e.labels?.[0] ?? e).innerText || e.ariaLabel || '')(document.activeElement)"
_VISIBLE_HEIGHTS = """[...document.querySelectorAll('main button, main .button')]
    .filter(e => e.getClientRects().length).map(e => e.getBoundingClientRect().height)"""
_ENABLED = "[...document.querySelectorAll('main form[method=post] button:not(:disabled)')].map(e => e.innerText)"


async def ask(site: Site, method: str, path: str, **options: Any) -> httpx.Response:
    """Do something elsewhere than on the page, as another person would."""
    headers = {"Authorization": f"Bearer {site.tokens['operator']}"}
    async with httpx.AsyncClient(base_url=site.origin, headers=headers) as client:
        reply = await client.request(method, f"{V1}{path}", **options)
        assert reply.status_code < 400, reply.text
        return reply


def keys(page: Page, *pressed: str) -> Any:
    async def press() -> None:
        for each in pressed:
            await page.keyboard.press(each)

    return press()


async def tab_to(page: Page, name: str) -> None:
    """Move the focus with Tab until something of this name has it."""
    for _ in range(200):
        await page.keyboard.press("Tab")
        found = await page.evaluate(
            "(document.activeElement.labels?.[0] ?? document.activeElement).innerText || document.activeElement.ariaLabel || ''"
        )
        if name in found:
            return
    raise AssertionError(f"Tab never reaches {name!r}")


@in_browser
async def test_the_list_of_runs_follows_without_a_reload(chromium: Chromium, sites: dict[str, Site]):
    site = sites["work"]
    async with chromium.visit(site.origin, site.sessions["operator"]) as visit:
        await visit.go("/runs")
        await visit.page.evaluate("window.isSamePage = true")
        await expect(visit.page.locator("#live-chip")).to_have_text("Live")
        await ask(site, "PUT", "/runs/appears", json={"workflow": "order"})
        await expect(visit.page.get_by_role("link", name="1 new")).to_be_visible()  # no row moves under the pointer
        row = visit.page.get_by_role("row", name="reminder-1")
        await expect(row).to_contain_text("Waiting")
        await ask(site, "POST", "/runs/reminder-1/cancel")
        await expect(row).to_contain_text("Cancelled")
        assert await visit.page.evaluate("window.isSamePage")


@in_browser
async def test_a_list_loses_a_run_that_no_longer_matches_its_filter(chromium: Chromium, sites: dict[str, Site]):
    site = sites["work"]
    await ask(site, "PUT", "/runs/rests-1", json={"workflow": "reminder"})
    while (await ask(site, "GET", "/runs/rests-1")).json()["status"] != "WAITING":  # noqa: ASYNC110 - its worker has it there soon
        await asyncio.sleep(0.05)
    async with chromium.visit(site.origin, site.sessions["operator"]) as visit:
        await visit.go("/runs?filter=status:WAITING")
        await expect(visit.page.locator("#live-chip")).to_have_text("Live")
        row = visit.page.get_by_role("row", name="rests-1")
        await expect(row).to_contain_text("Waiting")
        await ask(site, "POST", "/runs/rests-1/cancel")
        await expect(row).to_have_count(0)


@in_browser
async def test_a_part_that_cannot_be_fetched_keeps_what_it_shows(chromium: Chromium, sites: dict[str, Site]):
    site = sites["work"]
    await ask(site, "PUT", "/runs/stays", json={"workflow": "order"})
    async with chromium.visit(site.origin, site.sessions["operator"]) as visit:
        await visit.go("/runs")
        rows = visit.page.locator("tr[data-row]")
        await expect(visit.page.locator("#live-chip")).to_have_text("Live")
        shown = await rows.count()
        await visit.page.route("**/runs?anchor=*", lambda route: route.fulfill(status=503, body="<h1>The store is away.</h1>"))
        await ask(site, "PUT", "/runs/unseen", json={"workflow": "order"})
        await expect(visit.page.locator("#live-chip")).to_contain_text("Stale: showing")
        assert await rows.count() == shown
        await visit.page.unroute("**/runs?anchor=*")
        await ask(site, "PUT", "/runs/seen", json={"workflow": "order"})
        await expect(visit.page.locator("#live-chip")).to_have_text("Live")
        await expect(visit.page.locator("#new-runs")).to_be_visible()
        visit.complaints = [each for each in visit.complaints if "503" not in each]


@in_browser
async def test_a_run_is_cancelled_with_keys_alone_and_its_page_follows(chromium: Chromium, sites: dict[str, Site]):
    site = sites["work"]
    await ask(site, "PUT", "/runs/by-keys", json={"workflow": "approval", "input": "eve"})
    async with chromium.visit(site.origin, site.sessions["operator"]) as visit:
        page = visit.page
        await visit.go("/")
        await keys(page, "g", "r")
        await page.wait_for_url("**/runs")
        await keys(page, "/")
        await page.keyboard.type("workflow:approval")
        await keys(page, "Enter")
        await page.wait_for_url("**/runs?*filter=*")
        await keys(page, "j")
        assert await page.evaluate("document.activeElement.innerText") == "by-keys"
        await keys(page, "Enter")
        await page.wait_for_url("**/runs/by-keys")
        await keys(page, ".")
        assert await page.evaluate("document.activeElement.innerText") == "Cancel…"
        await keys(page, "c")
        await tab_to(page, "Reason")
        await page.keyboard.type("the customer changed her mind")
        await tab_to(page, "Cancel the run")
        await keys(page, "Enter")
        await expect(page.get_by_role("status").first).to_contain_text("Cancellation was requested")
        await expect(page.locator("#run .status").first).to_have_text("Cancelled")  # the page follows by itself
        await keys(page, "?")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await keys(page, "Escape")
        await expect(page.get_by_role("dialog")).not_to_be_visible()


@in_browser
async def test_single_keys_can_be_turned_off(chromium: Chromium, sites: dict[str, Site]):
    site = sites["work"]
    async with chromium.visit(site.origin, site.sessions["viewer"]) as visit:
        await visit.go("/runs")
        await visit.page.get_by_role("button", name="Keys").click()
        await visit.page.get_by_role("button", name="Turn single keys off").click()
        await keys(visit.page, "g", "s")
        assert visit.page.url.endswith("/runs")


async def open_menu(page: Page, label: str) -> None:
    await page.locator("summary").filter(has_text=re.compile(rf"^{label}…$")).click()


async def manage(visit: Visit) -> None:
    """Do one of everything that the managing screens offer. It takes no JavaScript."""
    page = visit.page
    await visit.go("/queues/default")
    await open_menu(page, "Pause")
    await page.get_by_label("Reason").locator("visible=true").fill("maintenance")
    await page.get_by_role("button", name="Pause", exact=True).click()
    await expect(page.locator("#notice")).to_have_text("It is paused.")
    await open_menu(page, "Resume")
    await page.get_by_role("button", name="Resume", exact=True).click()
    await expect(page.locator("#notice")).to_have_text("It goes on.")

    await visit.go("/queues")
    await open_menu(page, "Override a limit")
    await page.locator("select[name=limit]").select_option("concurrency")
    await page.get_by_label("Value; empty: no limit").fill("50")
    await page.get_by_label("For how long").fill("7d")
    await page.get_by_label("Reason").locator("visible=true").fill("import of May")
    await page.get_by_role("button", name="Override a limit", exact=True).click()
    await expect(page.get_by_role("cell", name="import of May").first).to_be_visible()
    await page.get_by_role("button", name="End the override of concurrency").click()
    await expect(page.get_by_role("cell", name="import of May")).to_have_count(0)

    await visit.go("/schedules/nightly")
    await open_menu(page, "Run now")
    await page.get_by_role("button", name="Run now", exact=True).click()
    await expect(page.locator("#notice")).to_have_text("It was enqueued.")
    await page.get_by_label("From, UTC").fill("2026-01-01T00:00")
    await page.get_by_label("to", exact=True).fill("2026-01-04T00:00")
    await page.get_by_role("button", name="Count the ticks").click()
    await expect(page.get_by_role("button", name="Enqueue 3 items")).to_be_visible()

    await visit.go("/scopes/workspace/greeting")
    await page.get_by_label("Value, as JSON").fill('{"text": "good day"}')
    await page.get_by_role("button", name="Show the difference").click()
    await expect(page.locator("ins").filter(has_text="good day")).to_be_visible()
    await page.get_by_role("button", name="Write it").click()
    await expect(page.locator("#notice")).to_have_text("The change was saved.")

    await visit.go("/definitions/ship")
    await page.get_by_label("address").fill("1 Main St")
    await page.get_by_role("button", name="Start", exact=True).click()
    await expect(page.locator("#notice")).to_have_text("The run was started.")

    await visit.go("/system")
    await open_menu(page, "New token")
    await page.get_by_label("Name", exact=True).fill("ci")
    await page.get_by_role("button", name="New token", exact=True).click()
    assert (await page.locator("#token").inner_text()).startswith("swt_")

    await visit.go("/system")
    await open_menu(page, "New webhook")
    await page.get_by_label("Name of the endpoint").fill("shop")
    await page.get_by_label("Address").locator("visible=true").fill("https://shop.example.org/hooks")
    await page.get_by_role("button", name="New webhook", exact=True).click()
    assert (await page.locator("#secret").inner_text()).startswith("whsec_")
    await page.get_by_role("link", name="Back").click()
    await open_menu(page, "Delete")
    await page.get_by_role("button", name="Delete", exact=True).click()
    await expect(page.locator("#notice")).to_have_text("It was deleted.")
    await open_menu(page, "Back up now")
    await page.get_by_role("button", name="Back up now", exact=True).click()
    await expect(page.locator("#notice")).to_have_text("The store was backed up.")
    await page.get_by_role("link", name="Check the newest").click()
    await expect(page.get_by_text("The newest backup is whole")).to_be_visible()

    await visit.go("/runs?filter=id:refund")
    await page.get_by_label("All that match the filter").check()
    await page.get_by_role("button", name="Retry…").click()
    await page.get_by_label("Reason, for the audit").fill("the till works")
    await page.get_by_role("button", name=re.compile("^Retry [0-9]+ runs?$")).click()
    await expect(page.get_by_role("heading", name="Retry: 3 of 3 done")).to_be_visible()

    await visit.go("/audit")
    await expect(page.get_by_role("cell", name="retry 3 runs that match id:refund").first).to_be_visible()
    await expect(page.get_by_role("cell", name="maintenance").first).to_be_visible()


@in_browser
async def test_everything_is_managed_with_javascript(chromium: Chromium, sites: dict[str, Site]):
    site = sites["work"]
    async with chromium.visit(site.origin, site.sessions["store"]) as visit:
        await manage(visit)


@in_browser
async def test_everything_is_managed_without_javascript(chromium: Chromium, sites: dict[str, Site]):
    site = sites["work"]
    async with chromium.visit(site.origin, site.sessions["store"], java_script_enabled=False) as visit:
        await ask(site, "PUT", "/state/workspace/keys/greeting", json={"value": 1}, headers={"If-Match": "*"})
        await manage(visit)


@in_browser
async def test_a_run_is_answered_on_a_phone_without_javascript(chromium: Chromium, sites: dict[str, Site]):
    site = sites["work"]
    await ask(site, "PUT", "/runs/on-a-phone", json={"workflow": "approval", "input": "fay"})
    options: dict[str, Any] = {"viewport": PHONE, "java_script_enabled": False, "has_touch": True}
    async with chromium.visit(site.origin, site.sessions["operator"], **options) as visit:
        await visit.go("/runs/on-a-phone")
        await visit.page.get_by_role("button", name="Send signal").tap()
        await expect(visit.page.get_by_role("status").first).to_have_text("The signal was sent.")
        found = await ask(site, "GET", "/runs/on-a-phone/result?wait=20")
        assert found.json()["output"] == "fay: True"
        assert min(await visit.page.evaluate(_VISIBLE_HEIGHTS)) >= 43.5, "a button is too small for a finger"


@in_browser
async def test_a_link_is_made_and_answered_by_somebody_without_an_account(chromium: Chromium, sites: dict[str, Site]):
    site = sites["work"]
    await ask(site, "PUT", "/runs/by-link", json={"workflow": "approval", "input": "gil"})
    async with chromium.visit(site.origin, site.sessions["operator"]) as visit:
        await visit.go("/approvals")
        card = visit.page.get_by_role("region", name="approve, by-link")
        await expect(card).to_be_visible()  # the page follows until the run waits
        await card.get_by_text("A link for a person without an account").click()
        await card.get_by_label("For whom").fill("Ann")
        await card.get_by_role("button", name="Make the link").click()
        link = await visit.page.locator("#link").inner_text()
    async with chromium.visit(site.origin, viewport=PHONE) as stranger:
        await stranger.go(link.strip().removeprefix(site.origin))
        assert await stranger.axe() == []
        assert not await stranger.has_overflow()
        await stranger.page.get_by_role("button", name="Send").click()
        await expect(stranger.page.get_by_role("status")).to_contain_text("Your answer was sent")
        assert await stranger.axe() == []
        await stranger.go(link.strip().removeprefix(site.origin), status=410)


@in_browser
async def test_a_viewer_sees_every_action_and_may_do_none(chromium: Chromium, sites: dict[str, Site]):
    site = sites["work"]
    async with chromium.visit(site.origin, site.sessions["viewer"]) as visit:
        for path in ("/schedules/nightly", "/definitions/ship", "/scopes/workspace/greeting", "/queues", "/approvals"):
            await visit.go(path)
            assert await visit.page.evaluate(_ENABLED) == [], path


@in_browser
async def test_a_page_that_loses_its_server_says_since_when_and_catches_up(chromium: Chromium, sites: dict[str, Site]):
    site = sites["work"]
    port = int(site.origin.rpartition(":")[2])
    with Proxy(port) as away:
        origin = f"http://127.0.0.1:{away.port}"
        async with chromium.visit(origin, site.sessions["operator"]) as visit:
            chip = visit.page.locator("#live-chip")
            await visit.go("/runs/approval-ada")
            await expect(chip).to_have_text("Live")
            away.on_request = lambda _: Verdict.CUT
            away.cut()
            await expect(chip).to_contain_text(re.compile(r"showing \d\d:\d\d:\d\d"), timeout=20_000)
            await expect(visit.page.get_by_role("heading", name="approval-ada")).to_be_visible()  # what was there stays
            await ask(site, "POST", "/runs/approval-ada/cancel")
            away.on_request = lambda _: Verdict.PASS
            await expect(visit.page.locator("#run .status").first).to_have_text("Cancelled", timeout=30_000)
            visit.complaints.clear()  # Chromium notes each attempt that found no network


WIDE = """
name: wide
do:
  - parallel: {{{branches}}}
    name: everything_at_once
  - approval: Is a question with a long title that fits no phone good enough to be asked?
    name: asked
""".format(branches=", ".join(f"branch_with_a_long_name_{number}: {{wait: 1s}}" for number in range(9)))


@in_browser
async def test_no_part_of_a_wide_run_scrolls_the_page_sideways_on_a_phone(chromium: Chromium, sites: dict[str, Site]):
    site = sites["work"]
    document = {"json": {"document": WIDE}}
    async with httpx.AsyncClient(base_url=site.origin, headers={"Authorization": f"Bearer {site.tokens['store']}"}) as client:
        assert (await client.put(f"{V1}/definitions/wide", **document)).status_code == 200
    await ask(site, "PUT", "/runs/wide-1", json={"workflow": "wide"})
    async with chromium.visit(site.origin, site.sessions["store"], viewport=PHONE, has_touch=True) as visit:
        for tab in ("timeline", "graph", "steps", "events", "logs", "io", "raw"):
            await visit.go(f"/runs/wide-1?tab={tab}")
            assert not await visit.has_overflow(), tab
            assert await visit.axe() == [], tab
        await visit.go("/definitions/wide?tab=graph")
        assert not await visit.has_overflow()
        await visit.go("/runs/wide-1?tab=graph")
        frame = visit.page.get_by_label("Graph of the run")
        left, right = "e => e.scrollLeft = 0", "e => { e.scrollLeft = e.scrollWidth; return e.scrollLeft }"
        assert await frame.evaluate(right) > 0  # the picture is moved inside of its own frame
        await frame.evaluate(left)
        first = await frame.evaluate("e => e.querySelector('svg').getBoundingClientRect().left - e.getBoundingClientRect().left")
        assert first >= 0, "the left of the picture cannot be reached"


@in_browser
async def test_the_demo_runs_from_the_empty_home_and_its_run_is_paused_resumed_and_forked(
    chromium: Chromium, sites: dict[str, Site]
):
    site = sites["fresh"]
    async with chromium.visit(site.origin, site.sessions["store"]) as visit:
        page = visit.page
        await visit.go("/")
        await page.get_by_role("button", name="Run the demo").click()
        await expect(page.locator("#notice")).to_have_text("The run was started.")
        await expect(page.locator("#waiting-on")).to_contain_text("taste", timeout=60_000)
        await open_menu(page, "Pause")
        await page.get_by_label("Reason, for the people").fill("breakfast is late")
        await page.get_by_role("button", name="Pause the run").click()
        await expect(page.locator("#paused")).to_contain_text("breakfast is late")
        assert await visit.axe() == []
        await open_menu(page, "Resume")
        await page.get_by_role("button", name="Resume the run").click()
        await expect(page.locator("#notice")).to_have_text("The run goes on.")
        await expect(page.locator("#paused")).to_have_count(0)
        await page.get_by_role("link", name="Fork or rewind").click()
        await page.get_by_text("Edit what it begins with").click()
        await page.get_by_label("Variables, as a JSON object").fill('{"sugar": 2}')
        await page.get_by_label("Id of the fork").fill("second-breakfast")
        assert await visit.axe() == []
        await page.get_by_role("button", name=re.compile("^Fork at revision")).click()
        await expect(page.locator("#notice")).to_have_text("The fork was made.")
        await page.get_by_role("link", name="Events").click()
        await expect(page.locator("#receipt-0")).to_contain_text("set variable sugar")


@in_browser
async def test_the_runs_of_a_worker_and_its_actions_fit_a_phone(chromium: Chromium, sites: dict[str, Site]):
    site = sites["fresh"]
    async with chromium.visit(site.origin, site.sessions["store"], viewport=PHONE) as visit:
        await visit.go("/workers")
        await visit.page.locator("#workers td a").first.click()
        await expect(visit.page.locator("#worker")).to_be_visible()
        assert not await visit.has_overflow()
        assert await visit.axe() == []
        await open_menu(visit.page, "Drain")  # not sent: the other tests of this site need its worker
        await expect(visit.page.get_by_role("button", name="Drain", exact=True)).to_be_enabled()
        await open_menu(visit.page, "Mark dead")
        assert await visit.axe() == []
        assert not await visit.has_overflow()
