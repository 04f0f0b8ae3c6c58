"""The page of a link with which a person without an account answers one run, once."""

from __future__ import annotations

import logging
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stepwell.clock import from_ms
from stepwell.errors import NotFound, StepwellError
from stepwell.model.access import SignalLink
from stepwell.state.request_log import AuditEntry
from stepwell.web.api.approvals import OpenOffer, offer_of
from stepwell.web.authentication import check_same_origin
from stepwell.web.dashboard.form_fields import field_fault
from stepwell.web.dashboard.rendering import html_page
from stepwell.web.dashboard.screens.approvals import answer_of
from stepwell.web.problem import HttpProblem, problem_of
from stepwell.web.request_body import form_of
from stepwell.web.server_state import Server

__all__ = ["LinkPages"]

log = logging.getLogger(__name__)

_USED = "This link was used or has expired. Ask for a new one."
_OVER = "Nobody is asked any more: the run was answered elsewhere, or has ended."


class LinkPages:
    """Handlers of ``/links/{secret}``: looking at a link leaves it as it is, since mail programs look at links, too."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def show(self, request: Request) -> Response:
        """Show the question, and the form that answers it."""
        try:
            link, offer = await self._found(request)
        except (HttpProblem, StepwellError) as error:
            return _failed(request, error)
        values = {"title": offer.title or offer.name, "link": link, "offer": offer}
        return html_page(request, "answer.html", values)

    async def answer(self, request: Request) -> Response:
        """Send the answer, and use the link up."""
        well = self._server.well
        try:
            check_same_origin(request)
            form = await form_of(request)
            link, offer = await self._found(request)
            by = link.by or form.get("by", "").strip()[:200]
            if not by:
                raise field_fault("by", "say who you are")
            if offer.approvers and by not in offer.approvers:
                raise HttpProblem("forbidden", f"{by} may not answer; those who may are {', '.join(offer.approvers)}")
            if offer.kind == "approval" and not form.get("decision"):
                raise field_fault("decision", "approve or reject")
            value = answer_of(form if offer.kind == "approval" else {**form, "decision": ""}, by)
            if await well.access.redeem_link(request.path_params["secret"]) is None:  # used at this very moment
                raise HttpProblem("gone", _USED)
            await well.run(link.execution_id).signal(offer.name, value)
            await self._note(request, link, by)
        except (HttpProblem, StepwellError) as error:
            return _failed(request, error)
        return _page(request, "Thank you", "Your answer was sent. You can close this page.", 200)

    async def _found(self, request: Request) -> tuple[SignalLink, OpenOffer]:
        well = self._server.well
        link = await well.access.link(request.path_params["secret"])
        if link is None:
            raise HttpProblem("gone", _USED)
        try:
            summary = await well.executions.get(link.execution_id)
            if summary.workspace_id != link.workspace:
                raise HttpProblem("gone", _OVER)
            return link, await offer_of(well, summary, link.signal)
        except NotFound:
            raise HttpProblem("gone", _OVER) from None

    async def _note(self, request: Request, link: SignalLink, by: str) -> None:
        entry = AuditEntry(
            entry_id="",
            at=from_ms(0),  # the store sets both
            actor=f"{by} (by link of {link.created_by})" if link.created_by else f"{by} (by link)",
            action="answer_link",
            resource=f"{request.scope.get('root_path', '')}/runs/{link.execution_id}",
            status=200,
            request_id=str(request.scope.get("stepwell.request_id", "")),
        )
        try:
            await self._server.well.requests.note(link.workspace, entry)
        except StepwellError as error:
            log.error("the audit lacks request %s (answer_link by %s): %s", entry.request_id, by, error)


def _failed(request: Request, error: HttpProblem | StepwellError) -> Response:
    problem: dict[str, Any]
    status, problem, _ = problem_of(error, instance="", request_id="", root="")
    return _page(request, "Not sent" if request.method == "POST" else "Nothing to answer", str(problem["detail"]), status)


def _page(request: Request, title: str, message: str, status: int) -> Response:
    values = {"title": title, "message": message, "offer": None, "link": None, "is_fault": status >= 400}
    return html_page(request, "answer.html", values, status=status)
