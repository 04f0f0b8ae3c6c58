"""Scopes: the addresses of state, encoded so that no two can ever meet."""

from __future__ import annotations

from urllib.parse import quote, unquote

import msgspec

from stepwell.errors import InvalidInput
from stepwell.model.ids import check_key

__all__ = ["DEFAULT_WORKSPACE", "OWN_KINDS", "Scope"]

DEFAULT_WORKSPACE = "default"

# kind -> how many names address it inside its workspace; the global scope belongs to no workspace.
_FOR_ALL = {"global": 0, "workspace": 0, "workflow": 1, "step": 2, "conversation": 1, "user": 1, "inbox": 1, "custom": 1}
# Stepwell's own: stored definitions; and of the queue, what fires when, and who takes items.
OWN_KINDS = {"definition": 0, "schedule": 0, "worker": 0}
_KINDS = {**_FOR_ALL, **OWN_KINDS}


class Scope(msgspec.Struct, frozen=True):
    """Where state lives: global, or in a workspace (its own, a workflow's, a step's, a conversation's, a custom one)."""

    kind: str
    workspace: str = ""
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if _KINDS.get(self.kind) != len(self.names):
            raise InvalidInput(f"there is no scope {self.kind!r} with {len(self.names)} names")
        if self.kind != "global":
            check_key(self.workspace, "a workspace id")
        for name in self.names:
            check_key(name, f"the name of a {self.kind} scope")

    @classmethod
    def globals(cls) -> Scope:
        """Return the scope of the whole store."""
        return cls("global")

    @classmethod
    def of_workspace(cls, workspace: str) -> Scope:
        """Return the scope of a workspace."""
        return cls("workspace", workspace)

    @classmethod
    def of_workflow(cls, workflow_id: str, workspace: str = DEFAULT_WORKSPACE) -> Scope:
        """Return the scope of a workflow in a workspace, which all its executions share."""
        return cls("workflow", workspace, (workflow_id,))

    @classmethod
    def of_step(cls, workflow_id: str, step: str, workspace: str = DEFAULT_WORKSPACE) -> Scope:
        """Return the scope of a step of a workflow in a workspace."""
        return cls("step", workspace, (workflow_id, step))

    @classmethod
    def of_conversation(cls, conversation_id: str, workspace: str = DEFAULT_WORKSPACE) -> Scope:
        """Return the scope of a conversation in a workspace."""
        return cls("conversation", workspace, (conversation_id,))

    @classmethod
    def of_user(cls, user: str, workspace: str = DEFAULT_WORKSPACE) -> Scope:
        """Return the scope of a user in a workspace: the index of their conversations."""
        return cls("user", workspace, (user,))

    @classmethod
    def custom(cls, namespace: str, workspace: str = DEFAULT_WORKSPACE) -> Scope:
        """Return a scope of a workspace under a name of your own."""
        return cls("custom", workspace, (namespace,))

    def seen_from(self, workspace: str) -> Scope:
        """Return this scope as an execution of a workspace reaches it.

        The workspace ``default`` stands for the execution's own, so that one program keeps the state of two workspaces apart.
        Raise ``InvalidInput`` for any other workspace than its own.
        """
        if self.kind == "global" or self.workspace == workspace:
            return self
        if self.workspace != DEFAULT_WORKSPACE:
            raise InvalidInput(f"a run of workspace {workspace!r} cannot reach the state of workspace {self.workspace!r}")
        return Scope(self.kind, workspace, self.names)

    @property
    def path(self) -> str:
        """Return the scope as one text: kind, workspace and names between slashes, each percent-encoded.

        A slash or percent sign inside a name is always encoded, so the text splits back into exactly these parts.
        """
        return "/".join(quote(part, safe="") for part in (self.kind, self.workspace, *self.names))

    @classmethod
    def parse(cls, path: str) -> Scope:
        """Return the scope of a ``path``."""
        kind, *rest = (unquote(part, errors="strict") for part in path.split("/"))
        return cls(kind, rest[0] if rest else "", tuple(rest[1:]))
