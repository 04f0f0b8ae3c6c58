-- How much scoped state a workspace has, where its tier limits that: counted when a write first asks, and kept up to date from then on
-- by the writes themselves. Workspaces without a limit have no row, and pay no more than a look for one.

CREATE TABLE state_held (
    workspace_id TEXT PRIMARY KEY,
    bytes        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX state_scopes_by_workspace ON state_scopes (workspace_id);

CREATE TRIGGER hold_new_scope AFTER INSERT ON state_scopes WHEN new.bytes <> 0
BEGIN
    UPDATE state_held SET bytes = bytes + new.bytes WHERE workspace_id = new.workspace_id;
END;

CREATE TRIGGER hold_changed_scope AFTER UPDATE OF bytes ON state_scopes WHEN new.bytes <> old.bytes
BEGIN
    UPDATE state_held SET bytes = bytes + new.bytes - old.bytes WHERE workspace_id = new.workspace_id;
END;
