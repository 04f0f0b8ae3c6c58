-- Executions with their heads, the chain of commits, snapshots, scoped state, locks, and who may see which rows.
-- Ids and keys are compared by their bytes (COLLATE "C"); values are bytea, so that they keep theirs. Each statement ends its line.

-- A head moves within its page as long as there is room on it, and no index is touched: hence the fill factors.
CREATE TABLE {schema}.executions (
    number         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- commits go by it: it is short, and new ones meet on one page
    execution_id   text COLLATE "C" NOT NULL UNIQUE,
    workspace_id   text COLLATE "C" NOT NULL,
    workflow_id    text COLLATE "C" NOT NULL,
    version        bigint NOT NULL,
    parent_id      text COLLATE "C",
    status         text COLLATE "C" NOT NULL,
    revision       bigint NOT NULL,
    digest         text COLLATE "C" NOT NULL,    -- of the newest receipt: the head of the chain
    signature      bytea,
    fence          bigint NOT NULL DEFAULT 0,
    holder         text COLLATE "C",
    lease_until_ms bigint,
    wake_ms        bigint,                       -- when a worker should look at it; NULL: never
    is_nudged      boolean NOT NULL DEFAULT false,  -- somebody wants it looked at while it is leased
    claims         bigint NOT NULL DEFAULT 0,    -- since its last commit
    base_revision  bigint NOT NULL DEFAULT -1,   -- the chain starts after this one
    created_ms     bigint NOT NULL,
    updated_ms     bigint NOT NULL,
    deleted_ms     bigint                        -- a tombstone: the id is never used again
) WITH (fillfactor = 70);

CREATE INDEX executions_by_age ON {schema}.executions (created_ms, execution_id) WHERE deleted_ms IS NULL;
CREATE INDEX executions_by_workspace ON {schema}.executions (workspace_id, created_ms, execution_id) WHERE deleted_ms IS NULL;
CREATE INDEX executions_by_status ON {schema}.executions (status, created_ms, execution_id) WHERE deleted_ms IS NULL;
CREATE INDEX executions_by_wake ON {schema}.executions (wake_ms, number) WHERE wake_ms IS NOT NULL;

CREATE TABLE {schema}.commits (
    number    bigint NOT NULL,
    revision  bigint NOT NULL,
    commit_id text COLLATE "C" NOT NULL,
    is_named  boolean NOT NULL,                  -- by its user; an id of our own says its revision, and is found by that
    header    bytea NOT NULL,
    body      bytea NOT NULL,
    PRIMARY KEY (number, revision)
);
CREATE UNIQUE INDEX commits_by_name ON {schema}.commits (number, commit_id) WHERE is_named;

CREATE TABLE {schema}.snapshots (
    number      bigint NOT NULL,
    revision    bigint NOT NULL,
    data        bytea NOT NULL,
    accumulator bytea NOT NULL,
    digest      text COLLATE "C" NOT NULL,
    PRIMARY KEY (number, revision)
);

-- A path may be longer than an index can hold, so its SHA-256 is the key.
CREATE TABLE {schema}.state_scopes (
    number       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    address      bytea NOT NULL UNIQUE,
    path         text COLLATE "C" NOT NULL,
    workspace_id text COLLATE "C" NOT NULL,
    revision     bigint NOT NULL,
    keys         bigint NOT NULL,
    bytes        bigint NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE {schema}.state_entries (
    number     bigint NOT NULL,                  -- of the scope
    key        text COLLATE "C" NOT NULL,
    data       bytea,                            -- NULL: a tombstone, made at expires_ms
    revision   bigint NOT NULL,
    expires_ms bigint,
    ttl_ms     bigint,
    sliding    boolean NOT NULL,
    PRIMARY KEY (number, key)
);
CREATE INDEX state_entries_by_revision ON {schema}.state_entries (number, revision);
CREATE INDEX state_entries_by_end ON {schema}.state_entries (expires_ms) WHERE expires_ms IS NOT NULL;

CREATE TABLE {schema}.locks (
    address     bytea PRIMARY KEY,               -- SHA-256 of the name
    name        text COLLATE "C" NOT NULL,
    holder      text COLLATE "C" NOT NULL,
    fence       bigint NOT NULL,
    acquired_ms bigint NOT NULL,
    until_ms    bigint NOT NULL
) WITH (fillfactor = 70);

-- Fences only grow, whatever became of the locks that had them: a sequence is never rolled back.
CREATE SEQUENCE {schema}.fences;

-- The second net: with row-level security on, a role that is not the owner sees the workspace in stepwell.workspace and no other.
CREATE POLICY workspace_only ON {schema}.executions
    USING (workspace_id = nullif(current_setting('stepwell.workspace', true), ''));
CREATE POLICY workspace_only ON {schema}.commits
    USING (EXISTS (SELECT 1 FROM {schema}.executions AS e WHERE e.number = commits.number));
CREATE POLICY workspace_only ON {schema}.snapshots
    USING (EXISTS (SELECT 1 FROM {schema}.executions AS e WHERE e.number = snapshots.number));
CREATE POLICY workspace_only ON {schema}.state_scopes
    USING (workspace_id = nullif(current_setting('stepwell.workspace', true), ''));
CREATE POLICY workspace_only ON {schema}.state_entries
    USING (EXISTS (SELECT 1 FROM {schema}.state_scopes AS s WHERE s.number = state_entries.number));
