"""Scopes: the addresses of state, encoded so that no two are ever the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn
from urllib.parse import quote, unquote

import msgspec

from stepwell.errors import InvalidInput
from stepwell.model.ids import Id, check_key, id_text
from stepwell.model.plain_data import PlainRecord

__all__ = ["DEFAULT_WORKSPACE", "Scope", "check_path", "internal_path", "is_internal", "workspace_of"]

DEFAULT_WORKSPACE = "default"

# kind -> the number of names in its address; the global scope belongs to no workspace
_KINDS = {"global": 0, "workspace": 0, "workflow": 1, "step": 2, "conversation": 1, "user": 1, "custom": 1}

# Stepwell's own records -> what the names address. A `Scope` has none of these kinds, so that no public call reaches them.
_INTERNAL: dict[str, tuple[str, ...]] = {
    "definition": (),
    "schedule": (),
    "worker": (),
    "worker_drain": (),
    "restore": (),
    "retention": (),
    "tombstone": ("a bucket",),
    "access": (),
    "idempotency": ("a bucket",),
    "audit": ("a bucket",),
    "error_group": (),
    "webhook": (),
    "webhook_delivery": ("a bucket",),
    "webhook_receiver": (),
    "inbox": ("an execution id",),
    "late_result": ("an execution id",),
    "child_places": ("the id of a root execution",),
    "engine": ("the name of an engine",),
    "engine_choice": (),
    "engine_payload": ("an execution id",),
    "sealing": (),
    "data_key": ("a workspace id", "a bucket"),
    "subject": ("a workspace id", "a bucket"),
    "subject_index": ("a workspace id", "the id of a data key", "a bucket"),
    "subject_scope": ("a workspace id", "a bucket"),
    "erasure": ("a workspace id",),
    "conversation_record": ("a conversation id",),
    "conversation_index": ("a user",),
}
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")


class _ScopeMeta(msgspec.StructMeta):
    """Refuses ``Scope.workspace("acme")``, which beside ``Scope.custom("till")`` looks as if it made a scope."""

    @property
    def workspace(self) -> Callable[..., NoReturn]:
        """Return a call that names the right one. Scopes themselves have a field of this name."""

        def refuse(*arguments: object) -> NoReturn:
            shown = ", ".join(map(repr, arguments))
            raise InvalidInput(f"workspace is a field of a scope; Scope.of_workspace({shown}) makes the scope of a workspace")

        return refuse


class Scope(PlainRecord, frozen=True, metaclass=_ScopeMeta):
    """The address of state: global, or in a workspace (its own, a workflow's, a step's, a conversation's, a user's, a custom
    one)."""

    kind: str
    workspace: str = ""
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in _KINDS:
            raise InvalidInput(f"{self.kind!r} is no kind of scope; use one of {', '.join(_KINDS)}")
        if not isinstance(self.names, tuple) or len(self.names) != _KINDS[self.kind]:
            raise InvalidInput(f"there is no scope {self.kind!r} with the names {self.names!r}; it takes {_counted(self.kind)}")
        if self.kind == "global":
            if self.workspace != "":
                raise InvalidInput(f"the global scope is in no workspace, not in {self.workspace!r}; use Scope.globals()")
        else:
            self._set("workspace", check_key(self.workspace, "a workspace id"))
        self._set("names", tuple(check_key(name, f"the name of a {self.kind} scope") for name in self.names))

    def _set(self, field: str, checked: object) -> None:
        """Set a field to its checked value, if that is another: a ``uuid.UUID`` was given in place of its text."""
        if getattr(self, field) != checked:
            msgspec.structs.force_setattr(self, field, checked)

    @classmethod
    def globals(cls) -> Scope:
        """Return the scope of the whole store."""
        return cls("global")

    @classmethod
    def of_workspace(cls, workspace: Id) -> Scope:
        """Return the scope of a workspace.

        - ``workspace``: the workspace.
        """
        return cls("workspace", id_text(workspace))

    @classmethod
    def of_workflow(cls, workflow_id: Id, workspace: Id = DEFAULT_WORKSPACE) -> Scope:
        """Return the scope of a workflow in a workspace, which all its executions share.

        - ``workflow_id``: the workflow's name.
        - ``workspace``: the workspace.
        """
        return cls("workflow", id_text(workspace), (id_text(workflow_id),))

    @classmethod
    def of_step(cls, workflow_id: Id, step: str, workspace: Id = DEFAULT_WORKSPACE) -> Scope:
        """Return the scope of a step of a workflow in a workspace.

        - ``workflow_id``, ``step``: the names of the workflow and the step.
        - ``workspace``: the workspace.
        """
        return cls("step", id_text(workspace), (id_text(workflow_id), step))

    @classmethod
    def of_conversation(cls, conversation_id: Id, workspace: Id = DEFAULT_WORKSPACE) -> Scope:
        """Return the scope of a conversation in a workspace.

        - ``conversation_id``: the conversation.
        - ``workspace``: the workspace.
        """
        return cls("conversation", id_text(workspace), (id_text(conversation_id),))

    @classmethod
    def of_user(cls, user: Id, workspace: Id = DEFAULT_WORKSPACE) -> Scope:
        """Return the scope of a user in a workspace.

        - ``user``: the user.
        - ``workspace``: the workspace.
        """
        return cls("user", id_text(workspace), (id_text(user),))

    @classmethod
    def custom(cls, namespace: Id, workspace: Id = DEFAULT_WORKSPACE) -> Scope:
        """Return a scope of a workspace under a name of your own.

        - ``namespace``: the name.
        - ``workspace``: the workspace.
        """
        return cls("custom", id_text(workspace), (id_text(namespace),))

    def seen_from(self, workspace: str) -> Scope:
        """Return this scope as an execution of a workspace reaches it.

        The workspace ``default`` stands for the execution's own, so that one program keeps the state of two workspaces apart.
        Raise ``InvalidInput`` for any other workspace than its own.

        - ``workspace``: the workspace of the execution.
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
        return _joined(self.kind, self.workspace, self.names)

    @classmethod
    def parse(cls, path: str) -> Scope:
        """Return the scope of a ``path``. Raise ``InvalidInput`` for any other text."""
        kind, workspace, names = _split(path)
        return cls(kind, workspace, names)


def internal_path(kind: str, workspace: str, *names: str) -> str:
    """Return the path of a scope of Stepwell's own records. Raise ``InvalidInput`` for a name that is no key."""
    check_key(workspace, "a workspace id")
    for name, what in zip(names, _INTERNAL[kind], strict=True):
        check_key(name, what)
    return _joined(kind, workspace, names)


def is_internal(path: str) -> bool:
    """Return whether a path is of Stepwell's own records."""
    return path.split("/", 1)[0] in _INTERNAL


def check_path(path: str) -> None:
    """Raise ``InvalidInput`` unless a path is that of a ``Scope`` or of Stepwell's own records."""
    kind, workspace, names = _split(path)
    if kind in _INTERNAL:
        internal_path(kind, workspace, *names)
    else:
        Scope(kind, workspace, names)


def workspace_of(path: str) -> str:
    """Return the workspace that a scope belongs to; empty for the global one.

    ``Scope.parse`` gives the same, but checks the path; every write asks this, for a path that is known to be good.
    """
    return unquote(path.split("/", 2)[1])


def _joined(kind: str, workspace: str, names: tuple[str, ...]) -> str:
    return "/".join(quote(part, safe="") for part in (kind, workspace, *names))


def _split(path: object) -> tuple[str, str, tuple[str, ...]]:
    if not isinstance(path, str) or _BAD_ESCAPE.search(path):
        raise InvalidInput(f"{path!r} is no path of a scope; use what Scope.path gave")
    try:
        kind, *rest = (unquote(part, errors="strict") for part in path.split("/"))
    except UnicodeDecodeError:
        raise InvalidInput(f"{path!r} is no path of a scope: what it escapes is no UTF-8") from None
    return kind, rest[0] if rest else "", tuple(rest[1:])


def _counted(kind: str) -> str:
    count = _KINDS[kind]
    return "none" if not count else "a tuple of one text" if count == 1 else f"a tuple of {count} texts"
