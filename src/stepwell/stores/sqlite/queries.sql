-- The statements of the SQLite store. Each is named, says what it guarantees, and is run by that name.

-- name: commits
-- Writes commits that each add a receipt, in order; if any of them does not follow from its head, none is written and it is an error.
-- The row of values is repeated as often as needed (see fast_path.py); rows of nothing are left out.
INSERT INTO step_commits (number, revision, previous, fence, digest, signature, committed_ms, commit_id, is_named, header, body)
SELECT * FROM (VALUES
(?,?,?,?,?,?,?,?,?,?,?)
) WHERE column1 IS NOT NULL;

-- name: first_commits
-- Makes many executions by their first commits, or none of them (see the view). Rows as for ``commits``.
INSERT INTO first_commits (execution_id, workspace_id, workflow_id, version, parent_id, status, revision, digest, signature,
                           committed_ms, holder, lease_until_ms, wake_ms, fence, commit_id, header, body, item_id, item_status,
                           item_fence, item_error, now_ms)
SELECT * FROM (VALUES
(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)
) WHERE column1 IS NOT NULL;

-- name: last_commits
-- Ends many executions by their last commits, or none of them (see the view). Rows as for ``commits``.
INSERT INTO last_commits (number, revision, previous, fence, digest, signature, committed_ms, commit_id, header, body, status,
                          execution_id, item_id, item_status, item_error, now_ms)
SELECT * FROM (VALUES
(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)
) WHERE column1 IS NOT NULL;

-- name: numbers
SELECT execution_id, number FROM executions WHERE execution_id IN (SELECT value FROM json_each(?1));

-- name: insert_commit
-- Adds the commit row of a new execution.
INSERT INTO commits (position, commit_id, is_named, header, body) VALUES ((?1 << 32) + ?2, ?3, ?4, ?5, ?6);

-- name: set_status
UPDATE executions SET status = ?2 WHERE number = ?1;

-- name: set_version
-- Has an execution go on with another version of its workflow.
UPDATE executions SET version = ?2 WHERE number = ?1;

-- name: insert_execution
-- Creates an execution unless its id was ever used; gives its number.
INSERT INTO executions (execution_id, workspace_id, workflow_id, version, parent_id, status, revision, digest, signature,
                        base_revision, created_ms, updated_ms, holder, lease_until_ms, wake_ms, fence)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?11, ?12, ?13, ?14, ?15)
ON CONFLICT DO NOTHING RETURNING number;

-- name: insert_snapshot
INSERT OR REPLACE INTO snapshots (position, data, accumulator, digest) VALUES ((?1 << 32) + ?2, ?3, ?4, ?5);

-- name: claim
-- Leases an execution that is free, expired or already the holder's, with a fence higher than any before.
UPDATE executions SET fence = fence + 1, holder = ?2, lease_until_ms = ?3, wake_ms = iif(wake_ms IS NULL, NULL, ?3), is_nudged = 0,
                      claims = claims + 1
WHERE execution_id = ?1 AND deleted_ms IS NULL AND (holder IS NULL OR holder = ?2 OR lease_until_ms <= ?4)
RETURNING fence;

-- name: lease_end
SELECT lease_until_ms FROM executions WHERE execution_id = ? AND deleted_ms IS NULL;

-- name: claim_due
-- Leases executions that are due and whose workflow is asked for in this version or a newer one, the longest due first, each with a
-- fence higher than before.
UPDATE executions SET fence = fence + 1, holder = ?2, lease_until_ms = ?3, wake_ms = ?3, is_nudged = 0, claims = claims + 1
WHERE number IN (
    SELECT number FROM executions
    WHERE wake_ms <= ?4 AND deleted_ms IS NULL AND (holder IS NULL OR lease_until_ms <= ?4)
      AND workflow_id IN (SELECT value ->> 0 FROM jsonb_each(?1))
      AND version <= (SELECT value ->> 1 FROM jsonb_each(?1) WHERE value ->> 0 = workflow_id)
    ORDER BY wake_ms, number LIMIT ?5)
RETURNING execution_id, fence;

-- name: rest
-- Gives a lease back with the time of the next look; a nudge that came meanwhile makes that now.
UPDATE executions SET holder = NULL, lease_until_ms = NULL, is_nudged = 0,
                      wake_ms = CASE WHEN ?3 THEN NULL WHEN is_nudged THEN ?4 ELSE ?2 END
WHERE number = ?1;

-- name: nudge
-- Has an execution looked at: now, or as soon as its holder rests.
UPDATE executions SET is_nudged = 1, wake_ms = iif(holder IS NULL, ?2, wake_ms)
WHERE execution_id = ?1 AND deleted_ms IS NULL AND status NOT IN ('COMPLETED', 'PARTIALLY_COMPLETED', 'FAILED', 'CANCELLED');

-- name: extend
-- Prolongs a lease that is still held.
UPDATE executions SET lease_until_ms = ?4, wake_ms = iif(wake_ms IS NULL, NULL, ?4)
WHERE execution_id = ?1 AND holder = ?2 AND fence = ?3 AND lease_until_ms > ?5 AND deleted_ms IS NULL;

-- name: release
-- Frees a lease, only for its holder; the fence stays, so the next one is higher.
UPDATE executions SET holder = NULL, lease_until_ms = NULL, wake_ms = iif(wake_ms IS NULL, NULL, ?4)
WHERE execution_id = ?1 AND holder = ?2 AND fence = ?3 AND deleted_ms IS NULL;

-- name: bury_execution
-- Leaves a tombstone of an execution; only while its newest receipt is the given one, if one is given.
UPDATE executions SET deleted_ms = ?2, holder = NULL, lease_until_ms = NULL, wake_ms = NULL, fence = fence + 1
WHERE execution_id = ?1 AND deleted_ms IS NULL AND (?3 IS NULL OR digest = ?3)
RETURNING number;

-- name: delete_commits
DELETE FROM commits WHERE position BETWEEN ?1 << 32 AND (?1 << 32) + ?2;

-- name: archive_commits
-- Drops the commits up to a revision, but for those with an id that a user chose: of these the id stays, with nothing in it, so that
-- a very late retry is recognised.
DELETE FROM commits WHERE position BETWEEN ?1 << 32 AND (?1 << 32) + ?2 AND NOT is_named;

-- name: empty_named_commits
UPDATE commits SET header = x'', body = x'' WHERE position BETWEEN ?1 << 32 AND (?1 << 32) + ?2 AND length(header) > 0;

-- name: delete_snapshots
DELETE FROM snapshots WHERE position BETWEEN ?1 << 32 AND (?1 << 32) + ?2;

-- name: rebase_execution
-- Makes a snapshot's revision the start of the chain; never one that is behind the present start or ahead of the head.
UPDATE executions SET base_revision = ?2 WHERE execution_id = ?1 AND deleted_ms IS NULL AND base_revision <= ?2 AND revision >= ?2
RETURNING number;

-- name: head
SELECT execution_id, workspace_id, workflow_id, version, status, revision, digest, fence, holder, lease_until_ms, base_revision,
       signature, parent_id, created_ms, updated_ms, wake_ms, claims, number
FROM executions WHERE execution_id = ? AND deleted_ms IS NULL;

-- name: nudged
-- Returns those of these executions that were nudged.
SELECT execution_id FROM executions
WHERE execution_id IN (SELECT value FROM json_each(?1)) AND is_nudged AND deleted_ms IS NULL;

-- name: head_digest
SELECT digest FROM executions WHERE execution_id = ? AND deleted_ms IS NULL;

-- name: newest_snapshot
SELECT position & 0xffffffff, data, accumulator, digest FROM snapshots
WHERE position BETWEEN ?1 << 32 AND (?1 << 32) + ?2 ORDER BY position DESC LIMIT 1;

-- name: snapshot_at
SELECT position & 0xffffffff, data, accumulator, digest FROM snapshots WHERE position = (?1 << 32) + ?2;

-- name: commits_between
-- Commits after one revision and up to another, in order; without what is left of archived ones.
SELECT position & 0xffffffff, header, body FROM commits
WHERE position > (?1 << 32) + ?2 AND position <= (?1 << 32) + ?3 AND length(header) > 0 ORDER BY position LIMIT ?4;

-- name: commit_at
SELECT position & 0xffffffff, header, body FROM commits WHERE position = (?1 << 32) + ?2 AND commit_id = ?3;

-- name: commit_named
SELECT position & 0xffffffff, header, body FROM commits
WHERE is_named AND commit_id = ?2 AND position BETWEEN ?1 << 32 AND (?1 << 32) + 0xffffffff;

-- name: find
-- A page of executions, newest first; a filter that is NULL is no filter.
SELECT execution_id, workspace_id, workflow_id, version, status, revision, digest, fence, holder, lease_until_ms, base_revision,
       signature, parent_id, created_ms, updated_ms, wake_ms, claims, number
FROM executions
WHERE deleted_ms IS NULL AND (?1 IS NULL OR workspace_id = ?1) AND (?2 IS NULL OR workflow_id = ?2) AND (?3 IS NULL OR status = ?3)
  AND (?4 IS NULL OR (created_ms, execution_id) < (?4, ?5))
ORDER BY created_ms DESC, execution_id DESC LIMIT ?6;

-- name: find_in_workspace
-- The same by the index of workspaces. args: as find, and the first is not NULL
SELECT execution_id, workspace_id, workflow_id, version, status, revision, digest, fence, holder, lease_until_ms, base_revision,
       signature, parent_id, created_ms, updated_ms, wake_ms, claims, number
FROM executions
WHERE deleted_ms IS NULL AND workspace_id = ?1 AND (?2 IS NULL OR workflow_id = ?2) AND (?3 IS NULL OR status = ?3)
  AND (?4 IS NULL OR (created_ms, execution_id) < (?4, ?5))
ORDER BY created_ms DESC, execution_id DESC LIMIT ?6;

-- name: find_by_status
-- The same by the index of statuses. args: as find, and the third is not NULL
SELECT execution_id, workspace_id, workflow_id, version, status, revision, digest, fence, holder, lease_until_ms, base_revision,
       signature, parent_id, created_ms, updated_ms, wake_ms, claims, number
FROM executions
WHERE deleted_ms IS NULL AND (?1 IS NULL OR workspace_id = ?1) AND (?2 IS NULL OR workflow_id = ?2) AND status = ?3
  AND (?4 IS NULL OR (created_ms, execution_id) < (?4, ?5))
ORDER BY created_ms DESC, execution_id DESC LIMIT ?6;

-- name: stored_entry
-- One row of a scope as it is, expired and tombstones included: for the rules, not for readers.
SELECT data, revision, expires_ms, ttl_ms, sliding FROM state_entries WHERE scope = ?1 AND key = ?2;

-- name: live_entry
SELECT data, revision, expires_ms, ttl_ms, sliding FROM state_entries
WHERE scope = ?1 AND key = ?2 AND data IS NOT NULL AND (expires_ms IS NULL OR expires_ms > ?3);

-- name: scan
-- A page of live entries in order of their keys, by range, never by pattern.
SELECT key, data, revision, expires_ms, ttl_ms, sliding FROM state_entries
WHERE scope = ?1 AND key >= ?2 AND (?3 IS NULL OR key < ?3) AND (?4 IS NULL OR key > ?4)
  AND data IS NOT NULL AND (expires_ms IS NULL OR expires_ms > ?5)
ORDER BY key LIMIT ?6;

-- name: changes
SELECT key, data, revision, expires_ms, ttl_ms, sliding FROM state_entries
WHERE scope = ?1 AND revision > ?2 ORDER BY revision, key;

-- name: probe
-- Read the first row of every table, so that a damaged one is noticed: the pages on the way to it, whatever the table's size. The
-- conditions keep SQLite from reading an index in the table's place.
SELECT 1 FROM (SELECT 1 FROM migrations NOT INDEXED LIMIT 1)
UNION ALL SELECT 1 FROM (SELECT 1 FROM executions NOT INDEXED LIMIT 1)
UNION ALL SELECT 1 FROM (SELECT 1 FROM commits NOT INDEXED LIMIT 1)
UNION ALL SELECT 1 FROM (SELECT 1 FROM snapshots NOT INDEXED LIMIT 1)
UNION ALL SELECT 1 FROM (SELECT 1 FROM state_entries NOT INDEXED LIMIT 1)
UNION ALL SELECT 1 FROM (SELECT 1 FROM state_scopes NOT INDEXED WHERE bytes >= 0 LIMIT 1)
UNION ALL SELECT 1 FROM (SELECT 1 FROM state_counts NOT INDEXED LIMIT 1)
UNION ALL SELECT 1 FROM (SELECT 1 FROM locks NOT INDEXED WHERE holder >= '' LIMIT 1)
UNION ALL SELECT 1 FROM (SELECT 1 FROM counters NOT INDEXED LIMIT 1)
UNION ALL SELECT 1 FROM (SELECT 1 FROM queues NOT INDEXED LIMIT 1)
UNION ALL SELECT 1 FROM (SELECT 1 FROM turns NOT INDEXED LIMIT 1)
UNION ALL SELECT 1 FROM (SELECT 1 FROM items NOT INDEXED LIMIT 1)
UNION ALL SELECT 1 FROM (SELECT 1 FROM tiers NOT INDEXED LIMIT 1)
UNION ALL SELECT 1 FROM (SELECT 1 FROM workspaces NOT INDEXED LIMIT 1);

-- name: totals
SELECT revision, keys, bytes FROM state_scopes WHERE scope = ?;

-- name: scopes
SELECT scope FROM state_scopes WHERE keys > 0 AND (?1 IS NULL OR workspace_id = ?1) ORDER BY scope;

-- name: write_entry
INSERT INTO state_entries (scope, key, data, revision, expires_ms, ttl_ms, sliding) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (scope, key) DO UPDATE SET data = excluded.data, revision = excluded.revision, expires_ms = excluded.expires_ms,
                                       ttl_ms = excluded.ttl_ms, sliding = excluded.sliding;

-- name: clear_scope
-- Turns every key of a scope into a tombstone.
UPDATE state_entries SET data = NULL, revision = ?2, expires_ms = ?3, ttl_ms = NULL, sliding = 0 WHERE scope = ?1 AND data IS NOT NULL;

-- name: write_totals
INSERT INTO state_scopes (scope, workspace_id, revision, keys, bytes) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (scope) DO UPDATE SET revision = excluded.revision, keys = excluded.keys, bytes = excluded.bytes;

-- name: state_limits
-- What limits the scoped state of a workspace; no row if nothing does.
SELECT w.workspace_id, t.state_bytes, t.quotas, w.overrides
FROM workspaces AS w JOIN tiers AS t ON t.name = w.tier
WHERE w.workspace_id = ? AND (t.state_bytes IS NOT NULL OR t.quotas IS NOT NULL OR w.overrides IS NOT NULL);

-- name: held_state
-- How much scoped state an owner holds; no row if that was not counted before. args: workspace, workflow
SELECT bytes, keys FROM state_counts WHERE workspace_id = ? AND workflow_id = ?;

-- name: count_state
-- args: workspace, workflow ('': all of the workspace), path of the workflow's scope, beginning of the paths of its steps' scopes
INSERT INTO state_counts (workspace_id, workflow_id, bytes, keys)
SELECT ?1, ?2, coalesce(sum(bytes), 0), coalesce(sum(keys), 0) FROM state_scopes
WHERE workspace_id = ?1 AND (?2 = '' OR scope = ?3 OR substr(scope, 1, length(?4)) = ?4)
RETURNING bytes, keys;

-- name: hold_state
-- Does nothing for an owner that was not counted. args: workspace, workflow, growth in bytes, growth in keys
UPDATE state_counts SET bytes = bytes + ?3, keys = keys + ?4 WHERE workspace_id = ?1 AND workflow_id = ?2;

-- name: expired_in_scope
SELECT key FROM state_entries WHERE scope = ?1 AND data IS NOT NULL AND expires_ms <= ?2;

-- name: expired
SELECT scope, key FROM state_entries WHERE expires_ms <= ?1 AND data IS NOT NULL ORDER BY expires_ms LIMIT ?2;

-- name: drop_tombstones
DELETE FROM state_entries WHERE rowid IN (SELECT rowid FROM state_entries WHERE expires_ms <= ?1 AND data IS NULL LIMIT ?2);

-- name: lock
SELECT holder, fence, acquired_ms, until_ms FROM locks WHERE name = ?;

-- name: next_fence
-- A number higher than any given before, whatever became of the locks that had them.
UPDATE counters SET value = value + 1 WHERE name = 'fence' RETURNING value;

-- name: write_lock
INSERT OR REPLACE INTO locks (name, holder, fence, acquired_ms, until_ms) VALUES (?, ?, ?, ?, ?);

-- name: drop_lock
DELETE FROM locks WHERE name = ?;

-- name: drop_expired_locks
DELETE FROM locks WHERE name IN (SELECT name FROM locks WHERE until_ms <= ?1 LIMIT ?2);
