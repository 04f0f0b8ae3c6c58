-- The statements of the PostgreSQL store, except the queue's. Each has a name, by which it is run, prepared and in binary.
--
-- Arguments are arrays, one element per row, so that a group of any size is one statement. The caller sorts them, and rows are locked in
-- that order, so that two processes never deadlock. No statement relies on a strict isolation level: it locks a row first and then
-- compares the row as it is.
--
-- Three rules keep the server's plans right while tables grow:
-- * A lookup by execution id asks coalesce(deleted_ms, 0) = 0. "deleted_ms IS NULL" would match the partial indexes for listing, and the
--   planner could choose one while the table is small and keep that plan.
-- * The first array of a large statement stands in a sub-SELECT, so that the planner cannot see its length. Otherwise it makes a custom
--   plan for every group of one, which takes longer than the group.
-- * Arrays are unnested side by side in a SELECT list. Each function in FROM would be materialized, 16 KB or more for each.

-- name: commit_one
-- Moves one execution's head, only from exactly the head that the commit was built on, and inserts the commit; or does nothing. The last
-- commit of an execution also releases its lease. Stepwell made the commit id for this revision, so the id cannot have landed before.
-- returns: a row if it landed
WITH moved AS (
    UPDATE {schema}.executions AS e
    SET revision = $2::bigint, digest = $3::text, signature = $4::bytea, updated_ms = $5::bigint, claims = 0,
        status = coalesce($6::text, e.status),
        holder = CASE WHEN NOT $12::boolean THEN e.holder END,
        lease_until_ms = CASE WHEN NOT $12::boolean THEN e.lease_until_ms END,
        wake_ms = CASE WHEN NOT $12::boolean THEN e.wake_ms END,
        is_nudged = e.is_nudged AND NOT $12::boolean
    WHERE e.execution_id = $1::text AND e.revision = $2::bigint - 1 AND e.digest = $7::text AND coalesce(e.deleted_ms, 0) = 0
      AND ($8::bigint IS NULL OR e.fence = $8::bigint)
    RETURNING e.number
)
INSERT INTO {schema}.commits (number, revision, commit_id, is_named, header, body)
SELECT number, $2::bigint, $9::text, false, $10::bytea, $11::bytea FROM moved
RETURNING 1;

-- name: commit_group
-- Writes a group of commits to different executions, each as commit_one does: each lands or not by itself, all in one transaction. A
-- commit that rests releases the lease with the time of the next wake-up, which is now if the execution was nudged meanwhile. A commit
-- may also move the queue item that its execution came from, unless the item has ended or belongs to another execution by now.
-- Executions are locked before items, both in order of their ids.
-- args: one array per column; clock offset; the channel. returns: positions that landed, from 1
WITH given AS (
    SELECT unnest((SELECT $1::text[])) AS execution_id, unnest($2::bigint[]) AS revision, unnest($3::text[]) AS digest,
           unnest($4::bytea[]) AS signature, unnest($5::bigint[]) AS updated_ms, unnest($6::text[]) AS status,
           unnest($7::text[]) AS previous, unnest($8::bigint[]) AS fence, unnest($9::text[]) AS commit_id,
           unnest($10::bytea[]) AS header, unnest($11::bytea[]) AS body, unnest($12::boolean[]) AS rests,
           unnest($13::boolean[]) AS is_final, unnest($14::bigint[]) AS wake_ms,
           unnest($15::text[]) AS item_id, unnest($16::text[]) AS item_status, unnest($17::text[]) AS item_error,
           generate_subscripts((SELECT $1::text[]), 1) AS position
), ready AS MATERIALIZED (
    SELECT g.*, e.number
    FROM given AS g CROSS JOIN LATERAL (
        SELECT number, revision, digest, fence, deleted_ms FROM {schema}.executions WHERE execution_id = g.execution_id
        FOR NO KEY UPDATE
    ) AS e
    WHERE e.revision = g.revision - 1 AND e.digest = g.previous AND coalesce(e.deleted_ms, 0) = 0 AND (g.fence IS NULL OR e.fence = g.fence)
), held AS MATERIALIZED (
    SELECT r.item_status, r.item_error, i.number
    FROM (SELECT item_id, item_status, item_error, execution_id FROM ready WHERE item_id IS NOT NULL ORDER BY item_id) AS r
    CROSS JOIN LATERAL (
        SELECT number, execution_id, status FROM {schema}.items WHERE item_id = r.item_id FOR NO KEY UPDATE
    ) AS i
    WHERE i.execution_id = r.execution_id AND i.status IN ('QUEUED', 'CLAIMED', 'DISPATCHED') AND i.status <> r.item_status
), clock AS MATERIALIZED (  -- read after all rows are locked
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $18::bigint AS now_ms FROM (SELECT count(*) FROM held) AS after
), landed AS (
    UPDATE {schema}.executions AS e
    SET revision = r.revision, digest = r.digest, signature = r.signature, updated_ms = r.updated_ms, claims = 0,
        status = coalesce(r.status, e.status),
        holder = CASE WHEN r.rests THEN NULL ELSE e.holder END,
        lease_until_ms = CASE WHEN r.rests THEN NULL ELSE e.lease_until_ms END,
        is_nudged = e.is_nudged AND NOT r.rests,
        wake_ms = CASE WHEN NOT r.rests THEN e.wake_ms WHEN r.is_final THEN NULL WHEN e.is_nudged THEN k.now_ms ELSE r.wake_ms END
    FROM ready AS r CROSS JOIN clock AS k WHERE e.number = r.number
    RETURNING e.number, r.position, r.revision, r.commit_id, r.header, r.body, r.rests AND e.wake_ms <= k.now_ms AS is_due
), added AS (
    INSERT INTO {schema}.commits (number, revision, commit_id, is_named, header, body)
    SELECT number, revision, commit_id, false, header, body FROM landed
), moved AS (
    UPDATE {schema}.items AS i
    SET status = h.item_status, lease_until_ms = NULL, is_ready = false,
        dispatched_ms = CASE WHEN h.item_status = 'DISPATCHED' THEN k.now_ms ELSE i.dispatched_ms END,
        finished_ms = CASE WHEN h.item_status <> 'DISPATCHED' THEN k.now_ms END,
        error = CASE WHEN h.item_status <> 'DISPATCHED' THEN h.item_error ELSE i.error END
    FROM held AS h CROSS JOIN clock AS k
    WHERE i.number = h.number
    RETURNING i.finished_ms
), notified AS (
    SELECT pg_notify($19::text, 'queue') FROM (SELECT 1 FROM moved WHERE finished_ms IS NOT NULL LIMIT 1) AS any_of_them
)
SELECT position, CASE WHEN is_due THEN pg_notify($19::text, 'due')::text END, (SELECT count(pg_notify) FROM notified) FROM landed;

-- name: create_group
-- Creates executions with their first commits, each unless its id was ever used, all in one transaction. An execution with a holder is
-- leased from the start; a runnable one without a holder is due at once; one whose first commit is its last has neither. If an
-- execution comes from a claimed queue item, it is created, and the item moved, only if the claim still stands. Items are locked first,
-- in the order given.
-- args: one array per column; clock offset; the channel. returns: the ids that were created
WITH given AS (
    SELECT unnest((SELECT $1::text[])) AS execution_id, unnest($2::text[]) AS workspace_id, unnest($3::text[]) AS workflow_id,
           unnest($4::bigint[]) AS version, unnest($5::text[]) AS parent_id, unnest($6::text[]) AS status,
           unnest($7::bigint[]) AS revision, unnest($8::text[]) AS digest, unnest($9::bytea[]) AS signature,
           unnest($10::bigint[]) AS created_ms, unnest($11::text[]) AS commit_id, unnest($12::bytea[]) AS header,
           unnest($13::bytea[]) AS body, unnest($14::text[]) AS holder, unnest($15::bigint[]) AS lease_ms,
           unnest($16::boolean[]) AS is_runnable, unnest($17::boolean[]) AS is_final, unnest($18::text[]) AS item_id,
           unnest($19::text[]) AS item_status, unnest($20::text[]) AS item_error, unnest($21::bigint[]) AS item_fence,
           unnest($22::bigint[]) AS fence
), held AS MATERIALIZED (
    SELECT g.execution_id, g.item_status, g.item_error, i.number, i.status
    FROM given AS g CROSS JOIN LATERAL (
        SELECT number, execution_id, status, fence FROM {schema}.items WHERE item_id = g.item_id FOR NO KEY UPDATE
    ) AS i
    WHERE i.execution_id = g.execution_id AND i.fence = g.item_fence AND i.status IN ('CLAIMED', 'DISPATCHED')
), clock AS MATERIALIZED (  -- read after all rows are locked
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $23::bigint AS now_ms FROM (SELECT count(*) FROM held) AS after
), created AS (
    INSERT INTO {schema}.executions (execution_id, workspace_id, workflow_id, version, parent_id, status, revision, digest,
                                     signature, created_ms, updated_ms, fence, holder, lease_until_ms, wake_ms)
    SELECT execution_id, workspace_id, workflow_id, version, parent_id, status, revision, digest, signature, created_ms, created_ms,
           fence, CASE WHEN NOT is_final THEN holder END,
           CASE WHEN holder IS NOT NULL AND NOT is_final THEN now_ms + lease_ms END,
           CASE WHEN is_final OR NOT is_runnable THEN NULL WHEN holder IS NULL THEN now_ms ELSE now_ms + lease_ms END
    FROM given CROSS JOIN clock
    WHERE item_id IS NULL OR execution_id IN (SELECT h.execution_id FROM held AS h)
    ORDER BY execution_id
    ON CONFLICT (execution_id) DO NOTHING
    RETURNING number, execution_id, holder IS NULL AND wake_ms <= (SELECT now_ms FROM clock) AS is_due
), added AS (
    INSERT INTO {schema}.commits (number, revision, commit_id, is_named, header, body)
    SELECT c.number, g.revision, g.commit_id, false, g.header, g.body FROM created AS c JOIN given AS g USING (execution_id)
), moved AS (
    UPDATE {schema}.items AS i
    SET status = h.item_status, lease_until_ms = NULL, is_ready = false,
        dispatched_ms = CASE WHEN h.item_status = 'DISPATCHED' THEN k.now_ms ELSE i.dispatched_ms END,
        finished_ms = CASE WHEN h.item_status <> 'DISPATCHED' THEN k.now_ms END,
        error = CASE WHEN h.item_status <> 'DISPATCHED' THEN h.item_error ELSE i.error END
    FROM held AS h CROSS JOIN clock AS k
    WHERE i.number = h.number AND h.status <> h.item_status
      -- IS TRUE makes the planner hash the sub-select: it expects few rows, and there can be many.
      AND (h.execution_id IN (SELECT c.execution_id FROM created AS c)) IS TRUE
    RETURNING i.finished_ms
), notified AS (
    SELECT pg_notify($24::text, 'queue') FROM (SELECT 1 FROM moved WHERE finished_ms IS NOT NULL LIMIT 1) AS any_of_them
)
SELECT execution_id, CASE WHEN is_due THEN pg_notify($24::text, 'due')::text END, (SELECT count(pg_notify) FROM notified) FROM created;

-- name: begin
-- READ COMMITTED, whatever the database's default is: what is read after a lock must be newer than the lock.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: keep_to_indexes
-- For this session: never scan a whole table, and never compile a plan. The server keeps a plan for the session's life, and a table that
-- was small when the plan was made may be large by now. With sequential scans off the cost estimates are huge, which would trigger JIT.
-- Behind a pooler the server process differs, and nothing is set: the session belongs to others, too.
-- args: the server process of the connection, as reported at connect
SELECT set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false) WHERE pg_backend_pid() = $1::bigint;

-- name: set_bounds
-- For this transaction only: how long it may wait for a row lock, and stand idle while it holds some. A process that is stopped in the
-- middle of a transaction must not stop all others.
SELECT set_config('lock_timeout', $1::text, true), set_config('idle_in_transaction_session_timeout', $2::text, true);

-- name: lock_heads
-- Locks executions in the order given. returns: their rows, with when they were deleted and whether they are nudged
SELECT e.*
FROM unnest($1::text[]) AS g (execution_id) CROSS JOIN LATERAL (
    SELECT execution_id, workspace_id, workflow_id, version, status, revision, digest, fence, holder, lease_until_ms, base_revision,
           signature, parent_id, created_ms, updated_ms, wake_ms, claims, deleted_ms, is_nudged
    FROM {schema}.executions WHERE execution_id = g.execution_id FOR NO KEY UPDATE
) AS e;

-- name: lock_due
-- Locks due executions of some workflows, the longest due first, and skips those that another transaction has locked. The time is a
-- separate value and the order that of executions_by_wake, so that only due rows are read, however many wait. The other conditions are
-- inside CASE, whose selectivity the planner cannot estimate: otherwise it chooses a bitmap scan, which passes over the dead entries of
-- the index again and again until the next vacuum.
-- args: workflows, clock offset, limit, the newest version of each workflow. returns: as lock_heads
WITH clock AS MATERIALIZED (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $2::bigint AS now_ms)
SELECT execution_id, workspace_id, workflow_id, version, status, revision, digest, fence, holder, lease_until_ms, base_revision,
       signature, parent_id, created_ms, updated_ms, wake_ms, claims, deleted_ms, is_nudged
FROM {schema}.executions
WHERE wake_ms <= (SELECT now_ms FROM clock)
  AND CASE WHEN coalesce(deleted_ms, 0) = 0 AND (holder IS NULL OR lease_until_ms <= (SELECT now_ms FROM clock))
                AND workflow_id = ANY($1::text[]) AND version <= ($4::bigint[])[array_position($1::text[], workflow_id)]
           THEN true ELSE false END
ORDER BY wake_ms, number LIMIT $3::bigint
FOR NO KEY UPDATE OF executions SKIP LOCKED;

-- name: claim_due
-- Leases due executions of some workflows, the longest due first. Reads only due rows, as lock_due does.
-- args: as lock_due, then holder and length of the lease. returns: ids, fences and ends of the leases, in order
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $2::bigint AS now_ms
), due AS MATERIALIZED (
    SELECT number, wake_ms
    FROM {schema}.executions
    WHERE wake_ms <= (SELECT now_ms FROM clock)
      AND CASE WHEN coalesce(deleted_ms, 0) = 0 AND (holder IS NULL OR lease_until_ms <= (SELECT now_ms FROM clock))
                    AND workflow_id = ANY($1::text[]) AND version <= ($4::bigint[])[array_position($1::text[], workflow_id)]
               THEN true ELSE false END
    ORDER BY wake_ms, number LIMIT $3::bigint
    FOR NO KEY UPDATE OF executions SKIP LOCKED
), leased AS (
    UPDATE {schema}.executions AS e
    SET holder = $5::text, fence = e.fence + 1, lease_until_ms = clock.now_ms + $6::bigint, wake_ms = clock.now_ms + $6::bigint,
        claims = e.claims + 1, is_nudged = false
    FROM clock WHERE e.number = ANY(ARRAY(SELECT number FROM due))
    RETURNING e.number, e.execution_id, e.fence, e.lease_until_ms
)
SELECT execution_id, fence, lease_until_ms FROM leased JOIN due USING (number) ORDER BY due.wake_ms, number;

-- name: heads
-- The rows of executions, deleted ones included, without a lock: to say why a commit was refused.
SELECT e.*
FROM unnest($1::text[]) AS g (execution_id) CROSS JOIN LATERAL (
    SELECT execution_id, workspace_id, workflow_id, version, status, revision, digest, fence, holder, lease_until_ms, base_revision,
           signature, parent_id, created_ms, updated_ms, wake_ms, claims, deleted_ms, is_nudged
    FROM {schema}.executions WHERE execution_id = g.execution_id
) AS e;

-- name: seen_commits
-- Which of these commits landed before. args: executions, commit ids, and the revision in a generated id, NULL for a user's id
-- returns: position from 1, revision, header, body
SELECT g.position, c.revision, c.header, c.body
FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS g (execution_id, commit_id, revision, position)
JOIN {schema}.executions AS e ON e.execution_id = g.execution_id AND coalesce(e.deleted_ms, 0) = 0
CROSS JOIN LATERAL (
    (SELECT revision, header, body FROM {schema}.commits
     WHERE number = e.number AND revision = g.revision AND commit_id = g.commit_id)
    UNION ALL
    (SELECT revision, header, body FROM {schema}.commits WHERE number = e.number AND commit_id = g.commit_id AND is_named)
    LIMIT 1
) AS c;

-- name: lock_names
-- One transaction at a time acquires a named lock: there may be no row to lock yet, and its fence must be drawn after all earlier ones.
-- Held until the transaction ends. args: advisory keys of the names, sorted
SELECT pg_advisory_xact_lock(number) FROM unnest($1::bigint[]) AS g (number);

-- name: lock_locks
-- Locks the rows of locks in the order given.
SELECT l.*
FROM unnest($1::bytea[]) AS g (address) CROSS JOIN LATERAL (
    SELECT name, holder, fence, acquired_ms, until_ms FROM {schema}.locks WHERE address = g.address FOR NO KEY UPDATE
) AS l;

-- name: open_scopes
-- Inserts an empty row for each scope that has none, so that there is a row to lock.
INSERT INTO {schema}.state_scopes (address, path, workspace_id, revision, keys, bytes)
SELECT address, path, workspace_id, 0, 0, 0 FROM unnest($1::bytea[], $2::text[], $3::text[]) AS g (address, path, workspace_id)
ON CONFLICT (address) DO NOTHING;

-- name: lock_scopes
-- Locks scopes in the order given. A writer holds the scope, so revisions and totals have no gaps.
-- args: addresses
-- returns: path, totals, and whether anything may limit the state of the scope's workspace
SELECT s.path, s.revision, s.keys, s.bytes,
       EXISTS (SELECT FROM {schema}.workspaces AS w JOIN {schema}.tiers AS t ON t.name = w.tier
               WHERE w.workspace_id = s.workspace_id
                 AND (t.state_bytes IS NOT NULL OR t.quotas IS NOT NULL OR w.overrides IS NOT NULL))
FROM unnest($1::bytea[]) AS g (address) CROSS JOIN LATERAL (
    SELECT path, workspace_id, revision, keys, bytes FROM {schema}.state_scopes WHERE address = g.address FOR NO KEY UPDATE
) AS s;

-- name: state_rooms
-- The limits of owners' scoped state (workspaces, and workflows in them), and how much they hold if that was counted; no row without a
-- limit. The counts are locked in the order given, so that no two writers use the same free bytes. Runs after the scopes are locked.
-- args: workspaces, workflows ('': the whole workspace), clock offset
SELECT g.workspace_id, g.workflow_id, g.most_bytes, g.most_keys, h.bytes, h.keys
FROM (SELECT g.workspace_id, g.workflow_id, g.place,
             {schema}.limit_of(w.overrides, g.of_bytes, CASE WHEN g.workflow_id = '' THEN t.state_bytes
                                                             ELSE (t.quotas ->> g.of_bytes)::bigint END, now_ms)::bigint AS most_bytes,
             {schema}.limit_of(w.overrides, g.of_keys, (t.quotas ->> g.of_keys)::bigint, now_ms)::bigint AS most_keys
      FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $3::bigint AS now_ms) AS clock CROSS JOIN LATERAL (
          SELECT workspace_id, workflow_id, place,
                 CASE WHEN workflow_id = '' THEN 'state_bytes' ELSE 'workflow_state_bytes' END AS of_bytes,
                 CASE WHEN workflow_id = '' THEN 'state_keys' ELSE 'workflow_state_keys' END AS of_keys
          FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS g (workspace_id, workflow_id, place)) AS g
      JOIN {schema}.workspaces AS w ON w.workspace_id = g.workspace_id JOIN {schema}.tiers AS t ON t.name = w.tier
      ORDER BY g.place) AS g
LEFT JOIN LATERAL (
    SELECT bytes, keys FROM {schema}.state_counts WHERE workspace_id = g.workspace_id AND workflow_id = g.workflow_id FOR NO KEY UPDATE
) AS h ON true
WHERE g.most_bytes IS NOT NULL OR g.most_keys IS NOT NULL;

-- name: count_state
-- Counts what owners hold. A count that another transaction is making is waited for, and kept.
-- args: workspaces, workflows ('': the whole workspace), paths of the workflows' scopes, beginnings of the paths of their steps' scopes
INSERT INTO {schema}.state_counts (workspace_id, workflow_id, bytes, keys)
SELECT g.workspace_id, g.workflow_id, c.bytes, c.keys
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS g (workspace_id, workflow_id, path, steps) CROSS JOIN LATERAL (
    SELECT coalesce(sum(s.bytes), 0) AS bytes, coalesce(sum(s.keys), 0) AS keys
    FROM {schema}.state_scopes AS s
    WHERE s.workspace_id = g.workspace_id AND (g.workflow_id = '' OR s.path = g.path OR starts_with(s.path, g.steps))) AS c
ON CONFLICT (workspace_id, workflow_id) DO NOTHING;

-- name: stored_entries
-- Entries of scopes as stored, with expired ones and tombstones: for the rules, not for readers. returns: position from 1, row
SELECT g.position, r.data, r.revision, r.expires_ms, r.ttl_ms, r.sliding
FROM unnest($1::bytea[], $2::text[]) WITH ORDINALITY AS g (address, key, position)
JOIN {schema}.state_scopes AS s ON s.address = g.address
JOIN {schema}.state_entries AS r ON r.number = s.number AND r.key = g.key;

-- name: expired_in_scope
SELECT r.key
FROM {schema}.state_scopes AS s JOIN {schema}.state_entries AS r ON r.number = s.number
WHERE s.address = $1::bytea AND r.data IS NOT NULL AND r.expires_ms <= $2::bigint;

-- name: expired_in_scopes
-- The same for several scopes, at this moment. args: scopes, clock offset. returns: path, key
SELECT s.path, r.key
FROM {schema}.state_scopes AS s JOIN {schema}.state_entries AS r ON r.number = s.number
WHERE s.address = ANY($1::bytea[]) AND r.data IS NOT NULL
  AND r.expires_ms <= floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $2::bigint;

-- name: expired
-- Expired keys, the oldest first. They are checked again once their scopes are locked, since they may have been set meanwhile.
SELECT s.path, r.key
FROM {schema}.state_entries AS r JOIN {schema}.state_scopes AS s ON s.number = r.number
WHERE r.data IS NOT NULL AND r.expires_ms <= floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $1::bigint
ORDER BY r.expires_ms LIMIT $2::bigint;

-- name: now
-- The server's clock plus a test's clock offset. Read after the locks, so that the wait for them is part of it.
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $1::bigint;

-- name: next_fences
-- Numbers higher than any before. Drawn after the locks, so that a later holder's is higher. args: the sequence, how many
SELECT nextval($1::text::regclass) FROM generate_series(1, $2::bigint);

-- name: insert_executions
-- A plain insert: if another transaction was first, the unique violation makes this one start over.
INSERT INTO {schema}.executions (execution_id, workspace_id, workflow_id, version, parent_id, status, revision, digest, signature,
                                 fence, holder, lease_until_ms, base_revision, created_ms, updated_ms, wake_ms, claims, is_nudged,
                                 deleted_ms)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bigint[], $8::text[],
                     $9::bytea[], $10::bigint[], $11::text[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[],
                     $16::bigint[], $17::bigint[], $18::boolean[], $19::bigint[]);

-- name: update_heads
-- Updates executions that this transaction has locked.
UPDATE {schema}.executions AS e
SET version = g.version, status = g.status, revision = g.revision, digest = g.digest, signature = g.signature, fence = g.fence,
    holder = g.holder, lease_until_ms = g.lease_until_ms, base_revision = g.base_revision, updated_ms = g.updated_ms, wake_ms = g.wake_ms,
    claims = g.claims, is_nudged = g.is_nudged, deleted_ms = g.deleted_ms
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::bytea[], $7::bigint[], $8::text[], $9::bigint[],
            $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::boolean[], $15::bigint[])
     AS g (execution_id, version, status, revision, digest, signature, fence, holder, lease_until_ms, base_revision, updated_ms, wake_ms,
           claims, is_nudged, deleted_ms)
WHERE e.execution_id = g.execution_id;

-- name: insert_commits
INSERT INTO {schema}.commits (number, revision, commit_id, is_named, header, body)
SELECT e.number, g.revision, g.commit_id, g.is_named, g.header, g.body
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::boolean[], $5::bytea[], $6::bytea[])
     AS g (execution_id, revision, commit_id, is_named, header, body)
JOIN {schema}.executions AS e ON e.execution_id = g.execution_id;

-- name: empty_named_commits
-- Empties commits up to a revision whose id a user chose, but keeps the id, so that a very late retry is still recognised.
UPDATE {schema}.commits AS c SET header = '', body = ''
FROM unnest($1::text[], $2::bigint[]) AS g (execution_id, revision), {schema}.executions AS e
WHERE e.execution_id = g.execution_id AND g.revision <= e.revision AND c.number = e.number AND c.revision <= g.revision
  AND c.is_named AND length(c.header) > 0;

-- name: delete_commits
-- Deletes commits up to a revision: all of them for a revision beyond the head, else those without a user's id.
DELETE FROM {schema}.commits AS c
USING unnest($1::text[], $2::bigint[]) AS g (execution_id, revision), {schema}.executions AS e
WHERE e.execution_id = g.execution_id AND c.number = e.number AND c.revision <= g.revision
  AND (NOT c.is_named OR g.revision > e.revision);

-- name: delete_snapshots
-- Drops the snapshots of executions up to a revision.
DELETE FROM {schema}.snapshots AS s
USING unnest($1::text[], $2::bigint[]) AS g (execution_id, revision), {schema}.executions AS e
WHERE e.execution_id = g.execution_id AND s.number = e.number AND s.revision <= g.revision;

-- name: write_snapshots
INSERT INTO {schema}.snapshots (number, revision, data, accumulator, digest)
SELECT e.number, g.revision, g.data, g.accumulator, g.digest
FROM unnest($1::text[], $2::bigint[], $3::bytea[], $4::bytea[], $5::text[]) AS g (execution_id, revision, data, accumulator, digest)
JOIN {schema}.executions AS e ON e.execution_id = g.execution_id
ON CONFLICT (number, revision) DO UPDATE SET data = excluded.data, accumulator = excluded.accumulator, digest = excluded.digest;

-- name: clear_scopes
-- Turns every key of scopes into a tombstone.
UPDATE {schema}.state_entries AS r
SET data = NULL, revision = g.revision, expires_ms = g.now_ms, ttl_ms = NULL, sliding = false
FROM unnest($1::bytea[], $2::bigint[], $3::bigint[]) AS g (address, revision, now_ms)
JOIN {schema}.state_scopes AS s ON s.address = g.address
WHERE r.number = s.number AND r.data IS NOT NULL;

-- name: write_entries
INSERT INTO {schema}.state_entries (number, key, data, revision, expires_ms, ttl_ms, sliding)
SELECT s.number, g.key, g.data, g.revision, g.expires_ms, g.ttl_ms, g.sliding
FROM unnest($1::bytea[], $2::text[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[], $7::boolean[])
     AS g (address, key, data, revision, expires_ms, ttl_ms, sliding)
JOIN {schema}.state_scopes AS s ON s.address = g.address
ON CONFLICT (number, key) DO UPDATE SET data = excluded.data, revision = excluded.revision, expires_ms = excluded.expires_ms,
                                        ttl_ms = excluded.ttl_ms, sliding = excluded.sliding;

-- name: write_totals
UPDATE {schema}.state_scopes AS s
SET revision = g.revision, keys = g.keys, bytes = g.bytes
FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[]) AS g (address, revision, keys, bytes)
WHERE s.address = g.address;

-- name: hold_state
-- args: workspaces, workflows, growths in bytes, growths in keys
UPDATE {schema}.state_counts AS h SET bytes = h.bytes + g.grown, keys = h.keys + g.more
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) AS g (workspace_id, workflow_id, grown, more)
WHERE h.workspace_id = g.workspace_id AND h.workflow_id = g.workflow_id;

-- name: write_locks
-- Writes locks whose rows, or names, this transaction has locked.
INSERT INTO {schema}.locks (address, name, holder, fence, acquired_ms, until_ms)
SELECT * FROM unnest($1::bytea[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[])
ON CONFLICT (address) DO UPDATE
SET holder = excluded.holder, fence = excluded.fence, acquired_ms = excluded.acquired_ms, until_ms = excluded.until_ms;

-- name: drop_locks
DELETE FROM {schema}.locks WHERE address = ANY($1::bytea[]);

-- name: acquire_one
-- Grants one lock if it is free, expired or the holder's already, with a fence higher than any before; or does nothing.
-- args: advisory key, address, name, holder, length in ms, clock offset, the sequence of fences. returns: fence, end
WITH waited AS MATERIALIZED (
    SELECT pg_advisory_xact_lock($1::bigint)
), drawn AS MATERIALIZED (  -- after the advisory lock, so that it is higher than the one before
    SELECT nextval($7::text::regclass) AS fence, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $6::bigint AS now_ms
    FROM waited
)
INSERT INTO {schema}.locks AS l (address, name, holder, fence, acquired_ms, until_ms)
SELECT $2::bytea, $3::text, $4::text, fence, now_ms, now_ms + $5::bigint FROM drawn
ON CONFLICT (address) DO UPDATE
SET holder = excluded.holder, until_ms = excluded.until_ms,
    fence = CASE WHEN l.until_ms <= excluded.acquired_ms THEN excluded.fence ELSE l.fence END,
    acquired_ms = CASE WHEN l.until_ms <= excluded.acquired_ms THEN excluded.acquired_ms ELSE l.acquired_ms END
WHERE l.until_ms <= excluded.acquired_ms OR l.holder = excluded.holder
RETURNING l.fence, l.until_ms;

-- name: renew_one
-- Extends a lock that is still held. args: address, holder, fence, length in ms, clock offset. returns: fence, end
WITH clock AS MATERIALIZED (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $5::bigint AS now_ms)
UPDATE {schema}.locks AS l SET until_ms = now_ms + $4::bigint FROM clock
WHERE l.address = $1::bytea AND l.holder = $2::text AND l.fence = $3::bigint AND l.until_ms > now_ms
RETURNING l.fence, l.until_ms;

-- name: unlock_one
-- Releases a lock for its holder while it is held, and notifies waiters. It stays taken for its minimum time.
-- args: address, holder, fence, minimum in ms, clock offset, the channel. returns: a row if it was released
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $5::bigint AS now_ms
), dropped AS (
    DELETE FROM {schema}.locks AS l USING clock
    WHERE l.address = $1::bytea AND l.holder = $2::text AND l.fence = $3::bigint AND l.until_ms > now_ms
      AND l.acquired_ms + $4::bigint <= now_ms
    RETURNING 1
), kept AS (
    UPDATE {schema}.locks AS l SET holder = '', until_ms = l.acquired_ms + $4::bigint FROM clock
    WHERE l.address = $1::bytea AND l.holder = $2::text AND l.fence = $3::bigint AND l.until_ms > now_ms
      AND l.acquired_ms + $4::bigint > now_ms
    RETURNING 1
)
SELECT pg_notify($6::text, 'lock')::text FROM (SELECT 1 FROM dropped UNION ALL SELECT 1 FROM kept) AS released;

-- name: lock_row
SELECT until_ms FROM {schema}.locks WHERE address = $1::bytea;

-- name: drop_tombstones
-- Deletes old tombstones, but none that was set again meanwhile.
DELETE FROM {schema}.state_entries
WHERE data IS NULL AND expires_ms <= $1::bigint AND (number, key) IN (
    SELECT number, key FROM {schema}.state_entries WHERE data IS NULL AND expires_ms <= $1::bigint LIMIT $2::bigint);

-- name: drop_expired_locks
-- Deletes locks that expired long ago, but none that was acquired again meanwhile.
DELETE FROM {schema}.locks
WHERE until_ms <= $1::bigint AND address IN (SELECT address FROM {schema}.locks WHERE until_ms <= $1::bigint LIMIT $2::bigint);

-- name: notify
-- Notifies listeners of what changed, if and when this transaction commits.
SELECT pg_notify($1::text, topic) FROM unnest($2::text[]) AS g (topic);

-- name: begin_reading
-- One snapshot for several reads.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- name: head
SELECT execution_id, workspace_id, workflow_id, version, status, revision, digest, fence, holder, lease_until_ms, base_revision,
       signature, parent_id, created_ms, updated_ms, wake_ms, claims
FROM {schema}.executions WHERE execution_id = $1::text AND coalesce(deleted_ms, 0) = 0;

-- name: head_digest
-- The digest of an execution's newest receipt.
SELECT digest FROM {schema}.executions WHERE execution_id = $1::text AND coalesce(deleted_ms, 0) = 0;

-- name: nudged
-- Which of these executions are nudged. Row by row through the index, as below.
SELECT e.execution_id
FROM unnest($1::text[]) AS g (execution_id) CROSS JOIN LATERAL (
    SELECT execution_id FROM {schema}.executions WHERE execution_id = g.execution_id AND is_nudged AND deleted_ms IS NULL
) AS e;

-- name: head_digests
-- The same for many executions. Row by row through the index, since a plan for a small table would be kept when it is large.
SELECT e.execution_id, e.digest
FROM unnest($1::text[]) AS g (execution_id) CROSS JOIN LATERAL (
    SELECT execution_id, digest FROM {schema}.executions WHERE execution_id = g.execution_id AND coalesce(deleted_ms, 0) = 0
) AS e;

-- name: newest_snapshot
-- The newest snapshot not after a revision (NULL: of all).
SELECT s.revision, s.data, s.accumulator, s.digest
FROM {schema}.executions AS e JOIN {schema}.snapshots AS s ON s.number = e.number
WHERE e.execution_id = $1::text AND coalesce(e.deleted_ms, 0) = 0 AND s.revision <= coalesce($2::bigint, e.revision)
ORDER BY s.revision DESC LIMIT 1;

-- name: commits_since_snapshot
-- The commits from the newest snapshot not after a revision (NULL: of all) up to that revision, in order; what is left of archived
-- ones is not among them.
SELECT c.revision, c.header, c.body
FROM {schema}.executions AS e JOIN {schema}.commits AS c ON c.number = e.number
WHERE e.execution_id = $1::text AND coalesce(e.deleted_ms, 0) = 0 AND c.revision <= coalesce($2::bigint, e.revision)
  AND c.revision > coalesce((
      SELECT max(s.revision) FROM {schema}.snapshots AS s WHERE s.number = e.number AND s.revision <= coalesce($2::bigint, e.revision)
  ), -1)
  AND length(c.header) > 0
ORDER BY c.revision;

-- name: commits_between
-- Up to so many commits after one revision and up to another (NULL: the head), in order.
SELECT c.revision, c.header, c.body
FROM {schema}.executions AS e JOIN {schema}.commits AS c ON c.number = e.number
WHERE e.execution_id = $1::text AND coalesce(e.deleted_ms, 0) = 0 AND c.revision > $2::bigint AND c.revision <= coalesce($3::bigint, e.revision)
  AND length(c.header) > 0
ORDER BY c.revision LIMIT $4::bigint;

-- name: base
-- The snapshot that the retained chain starts from.
SELECT s.revision, s.data, s.accumulator, s.digest
FROM {schema}.executions AS e JOIN {schema}.snapshots AS s ON s.number = e.number AND s.revision = e.base_revision
WHERE e.execution_id = $1::text AND coalesce(e.deleted_ms, 0) = 0;

-- name: commit_of
-- The commit with an id. args: execution, commit id, and the revision in a generated id, NULL for a user's id
SELECT c.revision, c.header, c.body
FROM {schema}.executions AS e CROSS JOIN LATERAL (
    (SELECT revision, header, body FROM {schema}.commits WHERE number = e.number AND revision = $3::bigint AND commit_id = $2::text)
    UNION ALL
    (SELECT revision, header, body FROM {schema}.commits WHERE number = e.number AND commit_id = $2::text AND is_named)
    LIMIT 1
) AS c
WHERE e.execution_id = $1::text AND coalesce(e.deleted_ms, 0) = 0;

-- name: find
-- A page of executions, newest first; a filter that is NULL is no filter.
SELECT execution_id, workspace_id, workflow_id, version, status, revision, digest, fence, holder, lease_until_ms, base_revision,
       signature, parent_id, created_ms, updated_ms, wake_ms, claims
FROM {schema}.executions
WHERE deleted_ms IS NULL AND ($1::text IS NULL OR workspace_id = $1::text) AND ($2::text IS NULL OR workflow_id = $2::text)
  AND ($3::text IS NULL OR status = $3::text)
  AND ($4::bigint IS NULL OR (created_ms, execution_id) < ($4::bigint, $5::text))
ORDER BY created_ms DESC, execution_id DESC LIMIT $6::bigint;

-- name: entries
-- The live entries of some keys of a scope.
SELECT r.key, r.data, r.revision, r.expires_ms, r.ttl_ms, r.sliding
FROM {schema}.state_scopes AS s JOIN {schema}.state_entries AS r ON r.number = s.number
WHERE s.address = $1::bytea AND r.key = ANY($2::text[]) AND r.data IS NOT NULL
  AND (r.expires_ms IS NULL OR r.expires_ms > (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $3::bigint));

-- name: scan
-- A page of live entries in order of their keys, by range, never by pattern.
SELECT r.key, r.data, r.revision, r.expires_ms, r.ttl_ms, r.sliding
FROM {schema}.state_scopes AS s JOIN {schema}.state_entries AS r ON r.number = s.number
WHERE s.address = $1::bytea AND r.key >= $2::text AND ($3::text IS NULL OR r.key < $3::text) AND ($4::text IS NULL OR r.key > $4::text)
  AND r.data IS NOT NULL
  AND (r.expires_ms IS NULL OR r.expires_ms > (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $5::bigint))
ORDER BY r.key LIMIT $6::bigint;

-- name: changes
SELECT r.key, r.data, r.revision, r.expires_ms, r.ttl_ms, r.sliding
FROM {schema}.state_scopes AS s JOIN {schema}.state_entries AS r ON r.number = s.number
WHERE s.address = $1::bytea AND r.revision > $2::bigint ORDER BY r.revision, r.key;

-- name: totals
SELECT revision, keys, bytes FROM {schema}.state_scopes WHERE address = $1::bytea;

-- name: scopes
SELECT path FROM {schema}.state_scopes WHERE keys > 0 AND ($1::text IS NULL OR workspace_id = $1::text) ORDER BY path;

-- name: durability
SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes');

-- name: check
-- Reads from every kind of table.
SELECT (SELECT count(*) FROM (SELECT 1 FROM {schema}.executions LIMIT 1) AS t), (SELECT count(*) FROM (SELECT 1 FROM {schema}.commits LIMIT 1) AS t),
       (SELECT count(*) FROM (SELECT 1 FROM {schema}.state_entries LIMIT 1) AS t), (SELECT count(*) FROM (SELECT 1 FROM {schema}.locks LIMIT 1) AS t);
