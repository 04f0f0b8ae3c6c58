"""`stepwell_app`: the HTTP server of a well as an ASGI application, to run alone or to mount into another.

starlette is imported by the first call only, so that ``import stepwell`` needs no extra.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from stepwell.app.awaited import AsyncStepwell
from stepwell.errors import InvalidInput
from stepwell.web.authentication import Identify, ProxyIdentity
from stepwell.web.settings import HttpLimits

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["stepwell_app"]


def stepwell_app(
    well: AsyncStepwell,
    *,
    identify: Identify | None = None,
    proxy: ProxyIdentity | None = None,
    limits: HttpLimits | None = None,
    allowed_hosts: Iterable[str] = (),
    open_admin: bool = False,
    backups: str | Path | None = None,
) -> ASGIApp:
    """Return the HTTP server of a well as an ASGI application: the API, health and metrics.

    - ``well``: an ``AsyncStepwell``. If the application runs alone, its lifespan opens and closes the well. If it is mounted into
      another one, the host opens and closes the well.
    - ``identify``: the host application's own authentication: a function of the request, awaited if need be, that returns an
      ``Identity`` or None. Tokens and sessions of Stepwell are not looked at then. None: tokens and sessions.
    - ``proxy``: a proxy in front that signs people in and names them in a header, a ``ProxyIdentity``. Tokens work beside it.
      None: headers identify no caller.
    - ``limits``: what requests may use, an ``HttpLimits``.
    - ``allowed_hosts``: the names of this server; requests for other names are refused. Empty: any name.
    - ``open_admin``: True to answer ``/metrics``, the details of ``/readyz``, backups and migrations to other machines, too.
    - ``backups``: the folder that ``POST /backups`` makes backups into; None: it makes none.

    Raise ``InvalidInput`` for anything else than an ``AsyncStepwell``, and if the extra ``server`` is not installed.

    Example:

        well = AsyncStepwell("sqlite:///app.db")
        app.mount("/stepwell", stepwell_app(well))
    """
    if not isinstance(well, AsyncStepwell):
        raise InvalidInput(f"stepwell_app takes an AsyncStepwell, not {well!r}; open one on the same URL, with worker=False")
    try:
        from stepwell.web.application import application
    except ModuleNotFoundError as error:
        raise InvalidInput(f"the HTTP server needs {error.name}; install it with: pip install 'stepwell[server]'") from None
    return application(well, identify, proxy, limits or HttpLimits(), allowed_hosts, backups, is_admin_open=open_admin)
