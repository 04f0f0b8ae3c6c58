-- More limits of tiers: on keys of scoped state, and on the state of each workflow.
--
-- The limits of a tier that have no column of their own are one JSON document, so that another one needs no change of the schema.

-- Files of unreleased versions have schema 1 without the columns child_concurrency and overrides, and with items that are PENDING. In the
-- next two statements a column that the inner table lacks is that of the outer one, so that files of both kinds get the same shape.

CREATE TABLE tiers_before AS
SELECT b.name, concurrency, weight, rate_per_second, queue_depth, state_bytes, retention_seconds,
       (SELECT child_concurrency FROM tiers AS t WHERE t.name = b.name) AS child_concurrency
FROM (SELECT name, concurrency, weight, rate_per_second, queue_depth, state_bytes, retention_seconds,
             iif(name = 'unlimited', NULL, 100) AS child_concurrency
      FROM tiers) AS b;

CREATE TABLE workspaces_before AS
SELECT b.workspace_id, tier, is_paused, created_ms,
       (SELECT overrides FROM workspaces AS w WHERE w.workspace_id = b.workspace_id) AS overrides, passed, rate_ms
FROM (SELECT workspace_id, tier, is_paused, created_ms, NULL AS overrides, passed, rate_ms FROM workspaces) AS b;

DROP TABLE tiers;
DROP TABLE workspaces;

CREATE TABLE tiers (
    name              TEXT PRIMARY KEY,
    concurrency       INTEGER,                   -- NULL in this table: no limit
    weight            REAL NOT NULL,
    rate_per_second   REAL,
    queue_depth       INTEGER,
    state_bytes       INTEGER,
    retention_seconds REAL,
    child_concurrency INTEGER,
    quotas            TEXT                       -- JSON by limit; NULL: none
) STRICT, WITHOUT ROWID;

INSERT INTO tiers (name, concurrency, weight, rate_per_second, queue_depth, state_bytes, retention_seconds, child_concurrency)
SELECT * FROM tiers_before;

CREATE TABLE workspaces (
    workspace_id TEXT PRIMARY KEY,
    tier         TEXT NOT NULL,
    is_paused    INTEGER NOT NULL DEFAULT 0,
    created_ms   INTEGER NOT NULL,
    overrides    TEXT,                           -- JSON by limit: value, until_ms and more; NULL: none
    passed       REAL NOT NULL DEFAULT 0,        -- its pass: the tag of the next item that it may start
    rate_ms      REAL NOT NULL DEFAULT 0         -- when its next start is due
) STRICT, WITHOUT ROWID;

INSERT INTO workspaces SELECT * FROM workspaces_before;

DROP TABLE tiers_before;
DROP TABLE workspaces_before;

DROP INDEX items_ready;
DROP INDEX items_delayed;
DROP INDEX items_delayed_by_workspace;
DROP INDEX items_by_debounce;

UPDATE items SET status = 'QUEUED' WHERE status = 'PENDING';

CREATE INDEX items_ready ON items (workspace_id, queue, workflow_id, priority DESC, number) WHERE status = 'QUEUED' AND is_ready = 1;
CREATE INDEX items_delayed ON items (run_at_ms) WHERE status = 'QUEUED' AND is_ready = 0;
CREATE INDEX items_delayed_by_workspace ON items (workspace_id) WHERE status = 'QUEUED' AND is_ready = 0;
CREATE INDEX items_by_debounce ON items (workspace_id, debounce, number) WHERE debounce IS NOT NULL AND status = 'QUEUED';

-- How much scoped state a workspace has, or a workflow in it, where a tier limits that: counted when a write first asks, and kept up to
-- date from then on by the writes themselves. Those without a limit have no row, and pay no more than a look for one.

CREATE TABLE state_counts (
    workspace_id TEXT NOT NULL,
    workflow_id  TEXT NOT NULL,                  -- '': all state of the workspace
    bytes        INTEGER NOT NULL,
    keys         INTEGER NOT NULL,
    PRIMARY KEY (workspace_id, workflow_id)
) STRICT, WITHOUT ROWID;

-- The counts before were of workspaces' bytes alone. Their table stays, empty, for processes of the version before that still run.

DROP TRIGGER hold_new_scope;
DROP TRIGGER hold_changed_scope;
DELETE FROM state_held;
