"""A well in a FastAPI or Starlette application: opened and closed with it, and passed to its endpoints."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

from starlette.requests import HTTPConnection

from stepwell.app.awaited import AsyncStepwell
from stepwell.duration import Span
from stepwell.errors import InvalidInput

__all__ = ["get_well", "well_lifespan"]

_STATE = "stepwell"


def well_lifespan(
    well: AsyncStepwell | Callable[[], AsyncStepwell], *, grace_seconds: Span = 10
) -> Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]:
    """Return a lifespan for an application: it opens the well, runs its worker, and hands runs back at shutdown.

    - ``well``: the well, or a function that returns a new one. A closed well does not open again, so an application that is
      started several times in one process, as tests do, needs the function.
    - ``grace_seconds``: how long running steps may take at shutdown; after that other workers run them again.

    Example:

        app = FastAPI(lifespan=well_lifespan(lambda: AsyncStepwell("sqlite:///shop.db")))
    """

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncGenerator[dict[str, Any], None]:
        async with well() if callable(well) else well as opened:
            try:
                yield {_STATE: opened}
            finally:
                await opened.drain(grace_seconds)

    return lifespan


def get_well(connection: HTTPConnection) -> AsyncStepwell:
    """Return the well of the application that a request or WebSocket belongs to. A dependency of FastAPI.

    Raise ``InvalidInput`` if the application does not have ``well_lifespan`` as its lifespan.

    Example:

        Well = Annotated[AsyncStepwell, Depends(get_well)]
    """
    try:
        return cast("AsyncStepwell", getattr(connection.state, _STATE))
    except AttributeError:
        raise InvalidInput("this application has no well; make it with lifespan=well_lifespan(well)") from None
