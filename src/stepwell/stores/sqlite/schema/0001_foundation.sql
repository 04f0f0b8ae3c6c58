-- Executions with their heads, the chain of commits, snapshots, and scoped state.

CREATE TABLE executions (
    execution_id   TEXT PRIMARY KEY,
    workspace_id   TEXT NOT NULL,
    workflow_id    TEXT NOT NULL,
    version        INTEGER NOT NULL,
    parent_id      TEXT,
    status         TEXT NOT NULL,
    revision       INTEGER NOT NULL,
    digest         TEXT NOT NULL,                -- of the newest receipt: the head of the chain
    signature      BLOB,
    fence          INTEGER NOT NULL DEFAULT 0,
    holder         TEXT,
    lease_until_ms INTEGER,
    base_revision  INTEGER NOT NULL DEFAULT -1,  -- the chain starts after this one
    created_ms     INTEGER NOT NULL,
    updated_ms     INTEGER NOT NULL,
    deleted_ms     INTEGER                       -- a tombstone: the id is never used again
) STRICT, WITHOUT ROWID;

CREATE INDEX executions_by_age ON executions (created_ms, execution_id) WHERE deleted_ms IS NULL;
CREATE INDEX executions_by_workspace ON executions (workspace_id, created_ms, execution_id) WHERE deleted_ms IS NULL;
CREATE INDEX executions_by_status ON executions (status, created_ms, execution_id) WHERE deleted_ms IS NULL;

-- A rowid table, so that commits of many executions are appended side by side whatever their ids are.
CREATE TABLE commits (
    execution_id TEXT NOT NULL,
    revision     INTEGER NOT NULL,
    commit_id    TEXT NOT NULL,
    header       BLOB NOT NULL,
    body         BLOB NOT NULL,
    UNIQUE (execution_id, revision)
) STRICT;

-- By id first: ids grow with time, so that new ones meet on the last page of the index.
CREATE UNIQUE INDEX commits_by_id ON commits (commit_id, execution_id);

CREATE TABLE snapshots (
    execution_id TEXT NOT NULL,
    revision     INTEGER NOT NULL,
    data         BLOB NOT NULL,
    accumulator  BLOB NOT NULL,
    digest       TEXT NOT NULL,
    UNIQUE (execution_id, revision)
) STRICT;

CREATE TABLE state_entries (
    scope      TEXT NOT NULL,
    key        TEXT NOT NULL,
    data       BLOB,                             -- NULL: a tombstone, made at expires_ms
    revision   INTEGER NOT NULL,
    expires_ms INTEGER,
    ttl_ms     INTEGER,
    sliding    INTEGER NOT NULL,
    UNIQUE (scope, key)
) STRICT;

CREATE INDEX state_entries_by_revision ON state_entries (scope, revision);
CREATE INDEX state_entries_by_end ON state_entries (expires_ms) WHERE expires_ms IS NOT NULL;

CREATE TABLE state_scopes (
    scope        TEXT PRIMARY KEY,
    workspace_id TEXT NOT NULL,
    revision     INTEGER NOT NULL,
    keys         INTEGER NOT NULL,
    bytes        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE locks (
    name        TEXT PRIMARY KEY,
    holder      TEXT NOT NULL,
    fence       INTEGER NOT NULL,
    acquired_ms INTEGER NOT NULL,
    until_ms    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX locks_by_end ON locks (until_ms);

CREATE TABLE counters (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO counters (name, value) VALUES ('fence', 0);
