"""The connection to a Temporal server, and starts of workflows on it. Its errors are turned into Stepwell's, with what to do."""

from __future__ import annotations

import asyncio
import atexit
import sys
import threading
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from temporalio.client import Client, TLSConfig, WorkflowExecutionStatus
from temporalio.common import (
    Priority,
    RawValue,
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from stepwell.errors import EngineUnavailable, InvalidInput
from stepwell.model.cipher import KeyRing
from stepwell.model.external_engines import EngineRecord
from stepwell.temporal.codec import converter_for
from stepwell.temporal.messages import RunInput
from stepwell.temporal.naming import WORKSPACE_ATTRIBUTE, SignalName, fairness_key, short_summary

__all__ = ["TemporalAddress", "TemporalConnection"]

T = TypeVar("T")

_ANSWER_SECONDS = 1.75
"""How long a call waits. The SDK itself tries for nine seconds, in which a dispatcher would hold items that it cannot start."""

_TASK_SECONDS = 10.0
"""Temporal's own limit for a workflow task: after it, a task of a worker that died goes to another one."""

_AWAY = frozenset(
    (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.CANCELLED)
)

_EXIT_SECONDS = 1.0
"""How long the interpreter's exit waits for the SDK's threads to leave Python."""


@atexit.register
def _wait_for_the_sdk() -> None:
    """Let the SDK's own threads leave Python before the interpreter ends.

    They hand each answer to the event loop. One that the machine interrupts there, while the main thread takes the answer and
    runs to its end, aborts the process when it goes on: a program that has succeeded would end by SIGABRT.
    """
    deadline = time.monotonic() + _EXIT_SECONDS
    while time.monotonic() < deadline:
        known = {thread.ident for thread in threading.enumerate()}
        if sys._current_frames().keys() <= known:  # pyright: ignore[reportPrivateUsage] - nothing else tells of other threads
            return
        time.sleep(0.001)


class _NoSuchWorkflow(InvalidInput):
    """The server has no workflow of this id, or only one that has ended, where it was asked for an open one."""


@dataclass(frozen=True)
class TemporalAddress:
    """The address of a Temporal server, with its credentials.

    Args:
        address: host and port, ``127.0.0.1:7233``.
        namespace: the namespace that the workflows are in; it must exist.
        tls: whether the server asks for TLS; implied by the files.
        ca_file, cert_file, key_file: PEM files of the server's authority, and of the client's certificate and key.
        api_key: a key for Temporal Cloud.
        payload_keys: the keys that encrypt all payloads; None to send them as they are.
        has_search_attributes: whether workflows get the search attribute ``StepwellWorkspace``, which must be registered.
    """

    address: str = "127.0.0.1:7233"
    namespace: str = "default"
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    api_key: str | None = field(default=None, repr=False)
    payload_keys: KeyRing | None = None
    has_search_attributes: bool = False

    def tls_config(self) -> TLSConfig | bool:
        """Return how to speak TLS with the server, or False to speak plainly."""
        if not (self.ca_file or self.cert_file):
            return self.tls or self.api_key is not None
        return TLSConfig(_pem(self.ca_file), client_cert=_pem(self.cert_file), client_private_key=_pem(self.key_file))

    def __str__(self) -> str:
        return f"{self.address}, namespace {self.namespace!r}"


class TemporalConnection:
    """Starts, signals and looks up workflows."""

    def __init__(self, client: Client, address: TemporalAddress, task_seconds: float = _TASK_SECONDS) -> None:
        self.client, self.address = client, address
        self._task_timeout = timedelta(seconds=task_seconds)
        self.is_away = False
        """Whether the last call found no server."""

    @classmethod
    async def open(cls, address: TemporalAddress, lease_seconds: float = _TASK_SECONDS) -> TemporalConnection:
        """Connect, and make sure that the namespace exists, and has the search attributes that are asked for.

        Args:
            lease_seconds: how long after a worker's death its workflow tasks are given to others, if Temporal's own limit is
                not shorter.

        Raises:
            EngineUnavailable: nothing answers there, TLS was refused, there is no such namespace, or no such search attribute.
        """
        try:
            connecting = Client.connect(
                address.address,
                namespace=address.namespace,
                tls=address.tls_config(),
                api_key=address.api_key,
                data_converter=converter_for(address.payload_keys, address.namespace),
            )
            client = await asyncio.wait_for(connecting, 10)
        except (RuntimeError, TimeoutError) as error:  # the SDK raises nothing more exact
            raise EngineUnavailable(
                f"no Temporal server answers at {address.address!r}: {error or 'no answer in 10 s'}; check the address, and "
                "whether it asks for TLS"
            ) from None
        connection = cls(client, address, max(min(lease_seconds, _TASK_SECONDS), 1))
        await connection.check()
        if address.has_search_attributes:
            await connection._check_search_attributes()
        return connection

    async def check(self) -> None:
        """Ask the server for the namespace; ``EngineUnavailable`` if there is none."""
        from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

        request = DescribeNamespaceRequest(namespace=self.address.namespace)
        await self._call(self.client.workflow_service.describe_namespace(request))

    async def _check_search_attributes(self) -> None:
        """Raise ``EngineUnavailable`` if the namespace has not the search attribute that workflows get."""
        from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest

        namespace, name = self.address.namespace, WORKSPACE_ATTRIBUTE
        request = ListSearchAttributesRequest(namespace=namespace)
        found = await self._call(self.client.operator_service.list_search_attributes(request))
        if name not in found.custom_attributes:
            raise EngineUnavailable(
                f"namespace {namespace!r} has no search attribute {name!r}; register it with `temporal operator "
                f"search-attribute create --namespace {namespace} --name {name} --type Keyword`, or do without search attributes"
            )

    def _search_attributes(self, given: RunInput) -> TypedSearchAttributes:
        if not self.address.has_search_attributes:
            return TypedSearchAttributes.empty
        return TypedSearchAttributes([SearchAttributePair(SearchAttributeKey.for_keyword(WORKSPACE_ATTRIBUTE), given.workspace_id)])

    async def start(self, given: RunInput, record: EngineRecord, data: RawValue) -> bool:
        """Start a workflow; False if one with this id was started before, whether or not it has ended.

        Args:
            data: what is given, as a payload.

        Raises:
            EngineUnavailable: the server does not answer; the start may have been made.
        """
        starting = self.client.start_workflow(
            given.workflow,
            data,
            id=record.engine_id,
            task_queue=record.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            memo={"execution_id": given.execution_id, "workspace_id": given.workspace_id, "version": given.version},
            static_summary=short_summary(f"{given.workflow} v{given.version}, execution {given.execution_id}"),
            priority=Priority(fairness_key=fairness_key(given.workspace_id)),
            search_attributes=self._search_attributes(given),
            task_timeout=self._task_timeout,
        )
        try:
            await self._call(starting)
        except WorkflowAlreadyStartedError:
            self.is_away = False
            return False
        return True

    async def status(self, engine_id: str) -> tuple[WorkflowExecutionStatus | None, str]:
        """Return the status of the newest run of a workflow id, None if the server has none, and a word about its end.

        Raises:
            EngineUnavailable: the server does not answer.
            InvalidInput: it refuses to say, as to somebody without permission: the workflow may live.
        """
        handle = self.client.get_workflow_handle(engine_id)
        try:
            found = await self._call(handle.describe())
        except _NoSuchWorkflow:
            return None, "Temporal has no such workflow any more"
        status = found.status
        return status, "" if status is None else f"its workflow on Temporal is {status.name}"

    async def look(self, engine_id: str) -> None:
        """Signal a workflow to read its inbox. An ended workflow is left alone."""
        try:
            await self._call(self.client.get_workflow_handle(engine_id).signal(SignalName.LOOK))
        except _NoSuchWorkflow:
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
                refused = _NoSuchWorkflow if error.status is RPCStatusCode.NOT_FOUND else InvalidInput
                raise refused(f"Temporal refused a call: {error.message}") from None
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
