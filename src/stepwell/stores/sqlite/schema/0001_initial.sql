-- The record of migrations, executions with their heads, the chain of commits, snapshots, scoped state, locks, and the queue.

CREATE TABLE migrations (
    number INTEGER PRIMARY KEY,
    digest TEXT NOT NULL                         -- of the script that was run
) STRICT;

CREATE TABLE executions (
    number         INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice, even after a deletion
    execution_id   TEXT NOT NULL UNIQUE,
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
    wake_ms        INTEGER,                      -- when a worker should look at it; NULL: never
    is_nudged      INTEGER NOT NULL DEFAULT 0,   -- a message came while it is leased
    claims         INTEGER NOT NULL DEFAULT 0,   -- since its last commit
    base_revision  INTEGER NOT NULL DEFAULT -1,  -- the chain starts after this one
    created_ms     INTEGER NOT NULL,
    updated_ms     INTEGER NOT NULL,
    deleted_ms     INTEGER                       -- a tombstone: the id is never used again
) STRICT;

CREATE INDEX executions_by_age ON executions (created_ms, execution_id) WHERE deleted_ms IS NULL;
CREATE INDEX executions_by_workspace ON executions (workspace_id, created_ms, execution_id) WHERE deleted_ms IS NULL;
CREATE INDEX executions_by_status ON executions (status, created_ms, execution_id) WHERE deleted_ms IS NULL;
CREATE INDEX executions_by_wake ON executions (wake_ms) WHERE wake_ms IS NOT NULL;

-- Rows are appended in the order of time, so that the commits of many executions share pages; the position is the execution's
-- number * 2^32 + the revision, which makes for a small index. Ids that Stepwell made say their revision, so only ids that users
-- chose need an index of their own.
CREATE TABLE commits (
    position  INTEGER NOT NULL UNIQUE,
    commit_id TEXT NOT NULL,
    is_named  INTEGER NOT NULL,
    header    BLOB NOT NULL,
    body      BLOB NOT NULL
) STRICT;

CREATE INDEX commits_by_name ON commits (commit_id, position) WHERE is_named;

-- One insert into this view is a commit that adds a receipt: it moves the head, only from exactly the head that the commit was built
-- on, and adds the commit row. If the head is another, the whole statement is taken back. The update must not name the status: SQLite
-- rewrites the index of every column that is named.
CREATE VIEW step_commits AS
SELECT 0 AS number, 0 AS revision, '' AS previous, 0 AS fence, '' AS digest, x'' AS signature, 0 AS committed_ms,
       '' AS commit_id, 0 AS is_named, x'' AS header, x'' AS body;

CREATE TRIGGER write_step_commit INSTEAD OF INSERT ON step_commits
BEGIN
    UPDATE executions SET revision = new.revision, digest = new.digest, signature = new.signature, updated_ms = new.committed_ms,
                          claims = 0
    WHERE number = new.number AND revision = new.revision - 1 AND digest = new.previous AND deleted_ms IS NULL
      AND (new.fence IS NULL OR fence = new.fence);
    SELECT raise(ABORT, 'a commit does not follow from its head') WHERE changes() = 0;
    INSERT INTO commits (position, commit_id, is_named, header, body)
    VALUES ((new.number << 32) + new.revision, new.commit_id, new.is_named, new.header, new.body);
END;

CREATE TABLE snapshots (
    position    INTEGER PRIMARY KEY,             -- as in commits
    data        BLOB NOT NULL,
    accumulator BLOB NOT NULL,
    digest      TEXT NOT NULL
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

CREATE INDEX state_scopes_by_workspace ON state_scopes (workspace_id);

-- How much scoped state a workspace has, or a workflow in it, where a tier limits that: counted when a write first asks, and kept up to
-- date from then on by the writes themselves. Those without a limit have no row, and pay no more than a look for one.

CREATE TABLE state_counts (
    workspace_id TEXT NOT NULL,
    workflow_id  TEXT NOT NULL,                  -- '': all state of the workspace
    bytes        INTEGER NOT NULL,
    keys         INTEGER NOT NULL,
    PRIMARY KEY (workspace_id, workflow_id)
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

-- The queue: tiers, workspaces, named queues and items. Used slots are counted from the items' rows; nothing here counts them.

CREATE TABLE tiers (
    name              TEXT PRIMARY KEY,
    concurrency       INTEGER,                   -- NULL in this table: no limit
    weight            REAL NOT NULL,
    rate_per_second   REAL,
    queue_depth       INTEGER,
    state_bytes       INTEGER,
    retention_seconds REAL,
    child_concurrency INTEGER,
    quotas            TEXT                       -- the limits without a column, in JSON by limit; NULL: none
) STRICT, WITHOUT ROWID;

INSERT INTO tiers (name, concurrency, weight, rate_per_second, queue_depth, state_bytes, retention_seconds, child_concurrency)
VALUES
    ('free', 1, 1, NULL, 1000, NULL, 604800, 100),
    ('startup', 3, 3, NULL, 10000, NULL, 604800, 100),
    ('scale', 5, 5, NULL, 100000, NULL, 604800, 100),
    ('enterprise', 10, 10, NULL, NULL, NULL, 604800, 100),
    ('unlimited', NULL, 1, NULL, NULL, NULL, 604800, NULL);

CREATE TABLE workspaces (
    workspace_id TEXT PRIMARY KEY,
    tier         TEXT NOT NULL,
    is_paused    INTEGER NOT NULL DEFAULT 0,
    created_ms   INTEGER NOT NULL,
    overrides    TEXT,                           -- JSON by limit: value, until_ms and more; NULL: none
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
    is_ready       INTEGER NOT NULL              -- whether a QUEUED item's time is known to have come; a claim sets it first
) STRICT;

-- Every question of a claim is answered by one of these, from its first entry on. An index holds only the items that it is for, so
-- that those which have ended cost nothing. A workspace's list must not be long in coming because of another's, nor that of the dead.
CREATE INDEX items_ready ON items (workspace_id, queue, workflow_id, priority DESC, number) WHERE status = 'QUEUED' AND is_ready = 1;
CREATE INDEX items_delayed ON items (run_at_ms) WHERE status = 'QUEUED' AND is_ready = 0;
CREATE INDEX items_delayed_by_workspace ON items (workspace_id) WHERE status = 'QUEUED' AND is_ready = 0;
CREATE INDEX items_active ON items (workspace_id) WHERE status IN ('CLAIMED', 'DISPATCHED');
CREATE INDEX items_active_in_queue ON items (queue) WHERE status IN ('CLAIMED', 'DISPATCHED');
CREATE INDEX items_leased ON items (lease_until_ms) WHERE status = 'CLAIMED';
CREATE INDEX items_ended ON items (workspace_id, queue, finished_ms) WHERE finished_ms IS NOT NULL;
CREATE INDEX items_by_workspace ON items (workspace_id, number);
CREATE INDEX items_dead ON items (number) WHERE status IN ('FAILED', 'CANCELLED');
CREATE UNIQUE INDEX items_by_key ON items (workspace_id, key) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX items_by_singleton ON items (workspace_id, singleton) WHERE singleton IS NOT NULL AND finished_ms IS NULL;
CREATE INDEX items_by_debounce ON items (workspace_id, debounce, number) WHERE debounce IS NOT NULL AND status = 'QUEUED';

-- The item of an execution is looked up when the execution is deleted, and is DISPATCHED by then: the first commit makes it so. A run
-- that is a single commit leaves no entry here.
CREATE INDEX items_by_execution ON items (execution_id) WHERE status = 'DISPATCHED';

-- One insert into this view is the first commit of an execution: the execution, the commit, and the claimed item that it came from
-- (if any) moved on. If the id is taken or the claim was lost, the whole statement is taken back.
CREATE VIEW first_commits AS
SELECT '' AS execution_id, '' AS workspace_id, '' AS workflow_id, 0 AS version, '' AS parent_id, '' AS status, 0 AS revision,
       '' AS digest, x'' AS signature, 0 AS committed_ms, '' AS holder, 0 AS lease_until_ms, 0 AS wake_ms, 0 AS fence,
       '' AS commit_id, x'' AS header, x'' AS body, '' AS item_id, '' AS item_status, 0 AS item_fence, '' AS item_error, 0 AS now_ms;

CREATE TRIGGER write_first_commit INSTEAD OF INSERT ON first_commits
BEGIN
    UPDATE items SET status = new.item_status, lease_until_ms = NULL, is_ready = 0,
                     error = iif(new.item_status = 'DISPATCHED', error, new.item_error),
                     dispatched_ms = iif(new.item_status = 'DISPATCHED', new.now_ms, dispatched_ms),
                     finished_ms = iif(new.item_status = 'DISPATCHED', NULL, new.now_ms)
    WHERE item_id = new.item_id AND execution_id = new.execution_id AND fence = new.item_fence AND status = 'CLAIMED';
    SELECT raise(ABORT, 'the claim of an item was lost') WHERE new.item_id IS NOT NULL AND changes() = 0;
    INSERT INTO executions (execution_id, workspace_id, workflow_id, version, parent_id, status, revision, digest, signature,
                            base_revision, created_ms, updated_ms, holder, lease_until_ms, wake_ms, fence)
    VALUES (new.execution_id, new.workspace_id, new.workflow_id, new.version, new.parent_id, new.status, new.revision, new.digest,
            new.signature, -1, new.committed_ms, new.committed_ms, new.holder, new.lease_until_ms, new.wake_ms, new.fence);
    INSERT INTO commits (position, commit_id, is_named, header, body)
    VALUES ((last_insert_rowid() << 32) + new.revision, new.commit_id, 0, new.header, new.body);
END;

-- One insert into this view is the last commit of an execution: its status, no lease any more, and the end of the item that it came
-- from. If the commit does not follow from the head, the whole statement is taken back.
CREATE VIEW last_commits AS
SELECT 0 AS number, 0 AS revision, '' AS previous, 0 AS fence, '' AS digest, x'' AS signature, 0 AS committed_ms, '' AS commit_id,
       x'' AS header, x'' AS body, '' AS status, '' AS execution_id, '' AS item_id, '' AS item_status, '' AS item_error, 0 AS now_ms;

CREATE TRIGGER write_last_commit INSTEAD OF INSERT ON last_commits
BEGIN
    UPDATE executions SET revision = new.revision, digest = new.digest, signature = new.signature, updated_ms = new.committed_ms,
                          claims = 0, status = new.status, holder = NULL, lease_until_ms = NULL, wake_ms = NULL, is_nudged = 0
    WHERE number = new.number AND revision = new.revision - 1 AND digest = new.previous AND deleted_ms IS NULL
      AND (new.fence IS NULL OR fence = new.fence);
    SELECT raise(ABORT, 'a commit does not follow from its head') WHERE changes() = 0;
    INSERT INTO commits (position, commit_id, is_named, header, body)
    VALUES ((new.number << 32) + new.revision, new.commit_id, 0, new.header, new.body);
    UPDATE items SET status = new.item_status, lease_until_ms = NULL, is_ready = 0, error = new.item_error, finished_ms = new.now_ms
    WHERE item_id = new.item_id AND execution_id = new.execution_id AND status IN ('CLAIMED', 'DISPATCHED');
END;

-- One insert into this view is a claim: the items in a list of numbers are leased, each with a fence higher than before and its attempt
-- counted; the turn is set; and the passes and rates of workspaces, in a list of [workspace, pass, rate], and the rates of queues, in a
-- list of [queue, rate], are noted.
CREATE VIEW claims AS
SELECT '' AS numbers, '' AS holder, 0 AS until_ms, 0 AS now_ms, 0.0 AS turn, '' AS workspaces, '' AS queues;

CREATE TRIGGER write_claim INSTEAD OF INSERT ON claims
BEGIN
    UPDATE items SET status = 'CLAIMED', is_ready = 0, holder = new.holder, fence = fence + 1, attempts = attempts + 1,
                     lease_until_ms = new.until_ms, claimed_ms = new.now_ms
    WHERE number IN (SELECT value FROM json_each(new.numbers));
    UPDATE turns SET turn = new.turn WHERE turn <> new.turn;
    UPDATE workspaces SET passed = value ->> 1, rate_ms = value ->> 2 FROM jsonb_each(new.workspaces)
    WHERE workspace_id = value ->> 0;
    UPDATE queues SET rate_ms = value ->> 1 FROM jsonb_each(new.queues) WHERE name = value ->> 0;
END;
