-- The queue: tiers, workspaces, named queues and items. Used slots are counted from the items' rows; nothing here counts them.

CREATE TABLE tiers (
    name              TEXT PRIMARY KEY,
    concurrency       INTEGER,                   -- NULL in this table: no limit
    weight            REAL NOT NULL,
    rate_per_second   REAL,
    queue_depth       INTEGER,
    state_bytes       INTEGER,
    retention_seconds REAL
) STRICT, WITHOUT ROWID;

INSERT INTO tiers (name, concurrency, weight, rate_per_second, queue_depth, state_bytes, retention_seconds) VALUES
    ('free', 1, 1, NULL, 1000, NULL, 604800),
    ('startup', 3, 3, NULL, 10000, NULL, 604800),
    ('scale', 5, 5, NULL, 100000, NULL, 604800),
    ('enterprise', 10, 10, NULL, NULL, NULL, 604800),
    ('unlimited', NULL, 1, NULL, NULL, NULL, 604800);

CREATE TABLE workspaces (
    workspace_id TEXT PRIMARY KEY,
    tier         TEXT NOT NULL,
    is_paused    INTEGER NOT NULL DEFAULT 0,
    created_ms   INTEGER NOT NULL,
    passed       REAL NOT NULL DEFAULT 0,        -- its pass: the tag of the next item that it may start
    rate_ms      REAL NOT NULL DEFAULT 0         -- when its next start is due
) STRICT, WITHOUT ROWID;

INSERT INTO workspaces (workspace_id, tier, created_ms) VALUES ('default', 'unlimited', 0);

CREATE TABLE queues (
    name            TEXT PRIMARY KEY,
    is_paused       INTEGER NOT NULL,
    concurrency     INTEGER,
    rate_per_second REAL,
    rate_ms         REAL NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE turns (
    turn REAL NOT NULL                           -- one row: the greatest tag that any claim has taken
) STRICT;

INSERT INTO turns (turn) VALUES (0);

CREATE TABLE items (
    number         INTEGER PRIMARY KEY AUTOINCREMENT,  -- first in, first out; never used twice
    item_id        TEXT NOT NULL UNIQUE,
    workspace_id   TEXT NOT NULL,
    workflow_id    TEXT NOT NULL,
    version        INTEGER NOT NULL,
    execution_id   TEXT NOT NULL,
    input          BLOB NOT NULL,
    queue          TEXT NOT NULL,
    status         TEXT NOT NULL,
    priority       INTEGER NOT NULL,
    enqueued_ms    INTEGER NOT NULL,
    run_at_ms      INTEGER NOT NULL,
    key            TEXT,
    body_digest    TEXT NOT NULL,
    singleton      TEXT,
    debounce       TEXT,
    attempts       INTEGER NOT NULL DEFAULT 0,
    max_attempts   INTEGER NOT NULL,
    holder         TEXT,
    fence          INTEGER NOT NULL DEFAULT 0,
    lease_until_ms INTEGER,
    claimed_ms     INTEGER,
    dispatched_ms  INTEGER,
    finished_ms    INTEGER,
    error          TEXT,
    is_ready       INTEGER NOT NULL              -- whether a PENDING item's time is known to have come; a claim sets it first
) STRICT;

-- Every question of a claim is answered by one of these, from its first entry on. An index holds only the items that it is for, so
-- that those which have ended cost nothing. A workspace's list must not be long in coming because of another's, nor that of the dead.
CREATE INDEX items_ready ON items (workspace_id, queue, workflow_id, priority DESC, number) WHERE status = 'PENDING' AND is_ready = 1;
CREATE INDEX items_delayed ON items (run_at_ms) WHERE status = 'PENDING' AND is_ready = 0;
CREATE INDEX items_delayed_by_workspace ON items (workspace_id) WHERE status = 'PENDING' AND is_ready = 0;
CREATE INDEX items_active ON items (workspace_id) WHERE status IN ('CLAIMED', 'DISPATCHED');
CREATE INDEX items_active_in_queue ON items (queue) WHERE status IN ('CLAIMED', 'DISPATCHED');
CREATE INDEX items_leased ON items (lease_until_ms) WHERE status = 'CLAIMED';
CREATE INDEX items_ended ON items (workspace_id, queue, finished_ms) WHERE finished_ms IS NOT NULL;
CREATE INDEX items_by_workspace ON items (workspace_id, number);
CREATE INDEX items_dead ON items (number) WHERE status IN ('FAILED', 'CANCELLED');
CREATE INDEX items_by_execution ON items (execution_id) WHERE finished_ms IS NULL;
CREATE UNIQUE INDEX items_by_key ON items (workspace_id, key) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX items_by_singleton ON items (workspace_id, singleton) WHERE singleton IS NOT NULL AND finished_ms IS NULL;
CREATE INDEX items_by_debounce ON items (workspace_id, debounce, number) WHERE debounce IS NOT NULL AND status = 'PENDING';
