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
    SELECT raise(ABORT, 'a commit of the group does not follow from its head') WHERE changes() = 0;
    INSERT INTO commits (position, commit_id, is_named, header, body)
    VALUES ((new.number << 32) + new.revision, new.commit_id, 0, new.header, new.body);
    UPDATE items SET status = new.item_status, lease_until_ms = NULL, is_ready = 0, error = new.item_error, finished_ms = new.now_ms
    WHERE item_id = new.item_id AND execution_id = new.execution_id AND status IN ('CLAIMED', 'DISPATCHED');
END;
