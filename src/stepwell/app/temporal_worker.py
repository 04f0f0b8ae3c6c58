"""A worker that runs executions on a Temporal server, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from stepwell.app.arguments import check_queues, check_settings, lease_of
from stepwell.app.composition import Parts
from stepwell.app.sealing import sealing_of
from stepwell.clock import Clock
from stepwell.contract.store import Store
from stepwell.duration import Span, seconds_of
from stepwell.errors import InvalidInput
from stepwell.model.cipher import KeyRing, cipher_of
from stepwell.model.limits import Limits

if TYPE_CHECKING:
    from stepwell.temporal.service import TemporalService

__all__ = ["TemporalWorker"]

log = logging.getLogger(__name__)


class TemporalWorker:
    """Serve a Temporal server for one store: run its workflow tasks and steps, and dispatch queue items to it.

    Needs ``pip install stepwell[temporal]``. It runs in a thread from its creation until ``close``, or as a context manager.

    - ``url``: the store, as for ``Stepwell``.
    - ``address``, ``namespace``: the server's host and port, and a namespace that exists there.
    - ``tls``, ``ca_file``, ``cert_file``, ``key_file``, ``api_key``: how to be let in; PEM files, or a key of Temporal Cloud.
    - ``workspaces``: workspaces whose own task queues (``workflow.workspace.<id>``) are served, too.
    - ``queues``: the Stepwell queues whose items it dispatches; empty for all.
    - ``concurrency``: how many steps run at once on each task queue.
    - ``lease_seconds``: how long after this process's death the server gives its steps to others.
    - ``grace_seconds``: how long steps under way may take when it stops.
    - ``max_cached_workflows``: how many executions are kept in memory between their tasks.
    - ``deployment``: the name and build id of a Temporal worker deployment.
    - ``payload_keys``: keys of 32 bytes by name, to encrypt all that Temporal stores with AES-256-GCM; the last one encrypts, the
      others open what they encrypted. All workers of a namespace need the same.
    - ``search_attributes``: whether workflows get the search attribute ``StepwellWorkspace``, which must be registered.
    - ``sweep_seconds``: how often executions are looked for whose workflows were ended on the server.
    - ``on_failure``: called in the worker's thread when it ends by itself; ``failure`` then says why.
    - ``clock``, ``limits``, ``signing_key``, ``encryption``, ``compress_over``, ``secrets``: as for ``Stepwell``.

    Creating one raises ``EngineUnavailable`` if the server cannot be reached or used, and ``InvalidInput`` for a bad argument.

    Example:

        with TemporalWorker("postgresql://...", address="127.0.0.1:7233"):
            run = well.start(checkout, order, engine="temporal")
            print(run.result(timeout="1m"))
    """

    def __init__(
        self,
        url: str | Store | None = None,
        *,
        address: str = "127.0.0.1:7233",
        namespace: str = "default",
        tls: bool = False,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        api_key: str | None = None,
        workspaces: Iterable[str] = (),
        queues: Iterable[str] = (),
        concurrency: int = 100,
        lease_seconds: Span = 30,
        grace_seconds: Span = 30,
        max_cached_workflows: int = 1_000,
        deployment: tuple[str, str] | None = None,
        payload_keys: Mapping[str, bytes] | None = None,
        search_attributes: bool = False,
        sweep_seconds: Span = 30,
        on_failure: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
        limits: Limits | None = None,
        signing_key: bytes | None = None,
        encryption: KeyRing | str | Path | None = None,
        compress_over: int | None = None,
        secrets: Iterable[str] = (),
    ) -> None:
        try:
            from stepwell.temporal.connection import TemporalAddress
        except ModuleNotFoundError as error:
            raise InvalidInput("the engine 'temporal' needs its client; run pip install 'stepwell[temporal]'") from error
        check_settings(True, concurrency, clock, limits, signing_key)
        keys = None if payload_keys is None else KeyRing.of(payload_keys)
        if keys is not None:
            cipher_of(keys.keys[keys.active])  # that the library is there is known before anything is sent
        self._address = TemporalAddress(address, namespace, tls, ca_file, cert_file, key_file, api_key, keys, search_attributes)
        self._workspaces, self._queues = check_queues(workspaces), check_queues(queues)
        self._concurrency, self._lease_seconds = concurrency, lease_of(lease_seconds)
        self._grace_seconds = seconds_of(grace_seconds, "grace_seconds")
        self._sweep_seconds = seconds_of(sweep_seconds, "sweep_seconds")
        self._cached, self._deployment = max_cached_workflows, deployment
        self._parts = Parts(url, clock, limits, signing_key, sealing_of(encryption, compress_over, secrets))
        self._service: TemporalService | None = None
        self._is_closed = False
        self.failure: BaseException | None = None
        """Why the worker ended by itself; None while it serves."""
        self._on_failure = on_failure
        self._ready: Future[None] = Future()
        self._parts.open()
        self._thread = threading.Thread(target=self._run, name="stepwell-temporal", daemon=True)
        self._thread.start()
        try:
            self._ready.result()
        except BaseException:
            self._thread.join()
            self._parts.close()
            raise

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised to the waiting caller, or logged
            if not self._ready.done():
                self._ready.set_exception(error)
            else:
                log.error("the worker on %s ended: %s", self._address, error)
                self.failure = error
                self._on_failure()

    async def _serve(self) -> None:
        service = self._service = await self._parts.temporal_service(
            self._address,
            concurrency=self._concurrency,
            lease_seconds=self._lease_seconds,
            grace_seconds=self._grace_seconds,
            queues=self._queues,
            workspaces=self._workspaces,
            cached=self._cached,
            deployment=self._deployment,
            sweep_seconds=self._sweep_seconds,
        )
        asyncio.get_running_loop().call_soon(self._ready.set_result, None)
        await service.run()

    def drain(self, grace_seconds: float | None = None) -> None:
        """Take no more tasks, and return at once; ``close`` waits for the end.

        - ``grace_seconds``: how long steps under way may still take; None: until they end.
        """
        if self._service is not None:
            self._service.stop(grace_seconds)

    def close(self) -> None:
        """Stop, wait for the end of what is under way, and close the store. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self.drain()
            self._thread.join()
            self._parts.close()

    def __repr__(self) -> str:
        return f"<TemporalWorker on {self._address}>"

    def __enter__(self) -> TemporalWorker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
