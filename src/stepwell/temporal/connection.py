"""The connection to a Temporal server, and starts of workflows on it. Its errors are turned into Stepwell's, with what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from temporalio.client import Client, TLSConfig, WorkflowExecutionStatus
from temporalio.common import Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from stepwell.errors import EngineUnavailable, InvalidInput
from stepwell.model.external_engines import EngineRecord
from stepwell.temporal.messages import RunInput, sealed
from stepwell.temporal.naming import SignalName, fairness_key

__all__ = ["TemporalAddress", "TemporalConnection"]

T = TypeVar("T")

_ANSWER_SECONDS = 2.0
"""How long a call waits. The SDK itself tries for nine seconds, in which a dispatcher would hold items that it cannot start."""

_AWAY = frozenset(
    (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.CANCELLED)
)


@dataclass(frozen=True)
class TemporalAddress:
    """The address of a Temporal server, with its credentials.

    Args:
        address: host and port, ``127.0.0.1:7233``.
        namespace: the namespace that the workflows are in; it must exist.
        tls: whether the server asks for TLS; implied by the files.
        ca_file, cert_file, key_file: PEM files of the server's authority, and of the client's certificate and key.
        api_key: a key for Temporal Cloud.
    """

    address: str = "127.0.0.1:7233"
    namespace: str = "default"
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    api_key: str | None = None

    def tls_config(self) -> TLSConfig | bool:
        """Return how to speak TLS with the server, or False to speak plainly."""
        if not (self.ca_file or self.cert_file):
            return self.tls or self.api_key is not None
        return TLSConfig(_pem(self.ca_file), client_cert=_pem(self.cert_file), client_private_key=_pem(self.key_file))

    def __str__(self) -> str:
        return f"{self.address}, namespace {self.namespace!r}"


class TemporalConnection:
    """Starts, signals and looks up workflows."""

    def __init__(self, client: Client, address: TemporalAddress) -> None:
        self.client, self.address = client, address
        self.is_away = False
        """Whether the last call found no server."""

    @classmethod
    async def open(cls, address: TemporalAddress) -> TemporalConnection:
        """Connect, and make sure that the namespace exists.

        Raises:
            EngineUnavailable: nothing answers there, TLS was refused, or there is no such namespace.
        """
        try:
            connecting = Client.connect(
                address.address, namespace=address.namespace, tls=address.tls_config(), api_key=address.api_key
            )
            client = await asyncio.wait_for(connecting, 10)
        except (RuntimeError, TimeoutError) as error:  # the SDK raises nothing more exact
            raise EngineUnavailable(
                f"no Temporal server answers at {address.address!r}: {error or 'no answer in 10 s'}; check the address, and "
                "whether it asks for TLS"
            ) from None
        connection = cls(client, address)
        await connection.check()
        return connection

    async def check(self) -> None:
        """Ask the server for the namespace; ``EngineUnavailable`` if there is none."""
        from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

        request = DescribeNamespaceRequest(namespace=self.address.namespace)
        await self._call(self.client.workflow_service.describe_namespace(request))

    async def start(self, given: RunInput, record: EngineRecord) -> bool:
        """Start a workflow; False if one with this id was started before, whether or not it has ended.

        Raises:
            EngineUnavailable: the server does not answer; the start may have been made.
            LimitExceeded: the input is larger than what Temporal takes.
        """
        starting = self.client.start_workflow(
            given.workflow,
            sealed(given, f"the input of execution {given.execution_id!r}"),
            id=record.engine_id,
            task_queue=record.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            memo={"execution_id": given.execution_id, "workspace_id": given.workspace_id, "version": given.version},
            static_summary=f"{given.workflow} v{given.version}, execution {given.execution_id}"[:200],
            priority=Priority(fairness_key=fairness_key(given.workspace_id)),
        )
        try:
            await self._call(starting)
        except WorkflowAlreadyStartedError:
            self.is_away = False
            return False
        return True

    async def status(self, engine_id: str) -> tuple[WorkflowExecutionStatus | None, str]:
        """Return the status of the newest run of a workflow id, None if the server has none, and a word about its end."""
        handle = self.client.get_workflow_handle(engine_id)
        try:
            found = await self._call(handle.describe())
        except InvalidInput:
            return None, "Temporal has no such workflow any more"
        status = found.status
        return status, "" if status is None else f"its workflow on Temporal is {status.name}"

    async def look(self, engine_id: str) -> None:
        """Signal a workflow to read its inbox. An ended workflow is left alone."""
        try:
            await self._call(self.client.get_workflow_handle(engine_id).signal(SignalName.LOOK))
        except InvalidInput:
            return

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            answer = await asyncio.wait_for(call, _ANSWER_SECONDS)
        except (TimeoutError, RPCError) as error:
            if isinstance(error, RPCError) and error.status not in _AWAY:
                self.is_away = False
                if "namespace" in error.message.lower():
                    raise EngineUnavailable(
                        f"Temporal at {self.address.address!r} does not serve namespace {self.address.namespace!r}: "
                        f"{error.message}; create it, or name another one"
                    ) from None
                raise InvalidInput(f"Temporal refused a call: {error.message}") from None
            self.is_away = True
            told = error.message if isinstance(error, RPCError) else f"no answer in {_ANSWER_SECONDS:g} s"
            raise EngineUnavailable(f"Temporal at {self.address.address!r} does not answer: {told}") from None
        self.is_away = False
        return answer


def _pem(name: str | None) -> bytes | None:
    if name is None:
        return None
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise InvalidInput(f"the file {name!r} cannot be read: {error.strerror}") from None
