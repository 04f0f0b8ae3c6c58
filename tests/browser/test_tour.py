"""The pictures of docs/how-to/dashboard.md, taken in a real browser. `make pictures` keeps them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from playwright.async_api import expect
from tests.browser.chromium import PHONE, Chromium, in_browser
from tests.browser.site import Site

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "dashboard.md"
SHOTS = {
    "dashboard-home": ("/", {}),
    "dashboard-run": ("/runs/order-8?step=charge", {}),
    "dashboard-errors": ("/errors", {}),
    "dashboard-queues": ("/queues", {"color_scheme": "dark"}),
    "dashboard-definition": ("/definitions/ship", {}),
    "dashboard-phone": ("/approvals", {"viewport": PHONE}),
}


@in_browser
async def test_the_pages_of_the_tour_are_drawn(chromium: Chromium, sites: dict[str, Site], tmp_path: Path):
    site, folder = sites["tour"], Path(os.environ.get("STEPWELL_TOUR", tmp_path))
    for name, (path, options) in SHOTS.items():
        async with chromium.visit(site.origin, site.sessions["admin"], **options) as visit:
            await visit.go(path)
            if await visit.page.locator("#live-chip").count():
                await expect(visit.page.locator("#live-chip")).to_have_text(re.compile("Live|Ended"))
            await visit.page.screenshot(path=folder / f"{name}.png", animations="disabled")
            assert (folder / f"{name}.png").stat().st_size > 10_000


def test_the_tour_shows_exactly_these_pictures():
    assert set(re.findall(r"pictures/(dashboard-[a-z]+)\.png", PAGE.read_text(encoding="utf-8"))) == set(SHOTS)
    for name in SHOTS:
        assert (ROOT / "docs" / "pictures" / f"{name}.png").exists()
