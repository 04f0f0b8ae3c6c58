"""The views of a Django project into which the tests mount the HTTP application."""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse
from django.urls import path

__all__ = ["urlpatterns"]


async def own(_: HttpRequest) -> JsonResponse:
    """Answer for Django."""
    return JsonResponse({"page": "the host's own"})


urlpatterns = [path("own", own)]
