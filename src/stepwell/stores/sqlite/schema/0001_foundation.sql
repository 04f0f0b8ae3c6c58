-- Executions with their heads, the chain of commits, snapshots, and scoped state.

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
    is_nudged      INTEGER NOT NULL DEFAULT 0,   -- somebody wants it looked at while it is leased
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

-- One insert into this view is an ordinary commit: it moves the head, only from exactly the head that the commit was built on, and
-- adds the commit row if the head moved. One that must land and does not takes back the whole statement. The update must not name
-- the status: SQLite rewrites the index of every column that is named.
CREATE VIEW ordinary_commits AS
SELECT 0 AS number, 0 AS revision, '' AS previous, 0 AS fence, '' AS digest, x'' AS signature, 0 AS committed_ms,
       '' AS commit_id, 0 AS is_named, x'' AS header, x'' AS body, 0 AS must_land;

CREATE TRIGGER write_ordinary_commit INSTEAD OF INSERT ON ordinary_commits
BEGIN
    UPDATE executions SET revision = new.revision, digest = new.digest, signature = new.signature, updated_ms = new.committed_ms,
                          claims = 0
    WHERE number = new.number AND revision = new.revision - 1 AND digest = new.previous AND deleted_ms IS NULL
      AND (new.fence IS NULL OR fence = new.fence);
    SELECT raise(ABORT, 'a commit of the group does not follow from its head') WHERE new.must_land AND changes() = 0;
    INSERT INTO commits (position, commit_id, is_named, header, body)
    SELECT (new.number << 32) + new.revision, new.commit_id, new.is_named, new.header, new.body WHERE changes() = 1;
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
