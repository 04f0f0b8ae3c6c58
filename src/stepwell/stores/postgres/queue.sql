-- The queue's statements of the PostgreSQL store. Items are locked in the order given, which the caller sorts, and decided afterwards.
-- The functions that add and claim items are part of the schema: see schema/0001_initial.sql.

-- name: enqueue
SELECT * FROM {schema}.enqueue($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::bytea[], $7::text[], $8::bigint[],
    $9::bigint[], $10::bigint[], $11::text[], $12::text[], $13::text[], $14::text[], $15::bigint[], $16::boolean, $17::bigint, $18::text);

-- name: claim_items
-- Claims items by the function of this name. The function looks at no more workspaces than it may take items. If some of them wait for
-- a queue that the claim itself filled, other workspaces may have items that can start, so the function runs again for what is left.
-- The shared advisory lock keeps tiers and queues from changing until the transaction ends: who pauses a queue or lowers a cap waits for
-- claims under way, and afterwards nothing starts by the old settings. (The lock returns an empty text that is part of an argument, so
-- that it is taken before the function runs.)
-- args: as the function's. returns: the items, in order
WITH RECURSIVE limited AS MATERIALIZED (
    SELECT name FROM {schema}.queues WHERE concurrency IS NOT NULL OR rate_per_second IS NOT NULL
), rounds AS (
    SELECT c.*, row_number() OVER () AS place, $3::bigint - count(*) OVER () AS rest,
           bool_or(c.queue IN (SELECT name FROM limited)) OVER () AS may_be_more
    FROM (SELECT pg_advisory_xact_lock_shared(5378)::text AS held) AS gate CROSS JOIN LATERAL
         {schema}.claim_items($1::text || held, $2::bigint, $3::bigint, $4::text[], $5::text[], $6::bigint) AS c
    UNION ALL
    SELECT n.* FROM rounds AS r CROSS JOIN LATERAL (
        SELECT c.*, row_number() OVER (), r.rest - count(*) OVER (), bool_or(c.queue IN (SELECT name FROM limited)) OVER ()
        FROM {schema}.claim_items($1::text, $2::bigint, r.rest, $4::text[], $5::text[], $6::bigint) AS c) AS n
    WHERE r.place = 1 AND r.rest > 0 AND r.may_be_more
)
SELECT item_id, workspace_id, workflow_id, version, execution_id, input, fence, attempts, until_ms, queue, enqueued_ms FROM rounds;

-- name: lock_admissions
-- One transaction at a time decides about requests to a workspace. Held until the transaction ends. args: workspaces, sorted
SELECT pg_advisory_xact_lock(hashtextextended(workspace_id, 5377)) FROM unnest($1::text[]) AS g (workspace_id);

-- name: lock_slots
-- Locks the workspaces in which executions start without waiting, as a claim does: what it counts afterwards stays true until it ends.
-- Tiers are kept from changing, as in claim_items. args: workspaces
SELECT 1 FROM (SELECT pg_advisory_xact_lock_shared(5378)::text AS held) AS gate CROSS JOIN LATERAL (
    SELECT 1 FROM {schema}.workspaces AS w WHERE w.workspace_id || held = ANY ($1::text[]) AND w.workspace_id = ANY ($1::text[])
    ORDER BY w.workspace_id FOR NO KEY UPDATE) AS w;

-- name: slots
-- How many executions each workspace may run at once (NULL: no limit), whether it is paused, and, if it is limited, how many it runs.
-- args: workspaces, clock offset
SELECT w.workspace_id, w.concurrency, w.is_paused, CASE WHEN w.concurrency IS NOT NULL THEN
    (SELECT count(*) FROM {schema}.items AS i WHERE i.workspace_id = w.workspace_id AND i.status IN ('CLAIMED', 'DISPATCHED')) END
FROM (SELECT w.workspace_id, w.is_paused,
             {schema}.limit_of(w.overrides, 'concurrency', t.concurrency, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $2::bigint)::bigint AS concurrency
      FROM {schema}.workspaces AS w JOIN {schema}.tiers AS t ON t.name = w.tier WHERE w.workspace_id = ANY ($1::text[])) AS w;

-- name: lock_rates
-- Locks the workspaces with rates whose items are returned unstarted. A claim locks workspaces before items, so a transaction that waits
-- here must not hold an item yet. Tiers and queues are kept from changing, as in claim_items. args: ids of the items, in any order
SELECT 1 FROM (SELECT pg_advisory_xact_lock_shared(5378)::text AS held) AS gate CROSS JOIN LATERAL (
    SELECT 1 FROM {schema}.workspaces AS w JOIN {schema}.tiers AS t ON t.name = w.tier
    WHERE w.workspace_id IN (SELECT i.workspace_id || held FROM {schema}.items AS i WHERE i.item_id = ANY ($1::text[]))
      AND (t.rate_per_second > 0 OR w.overrides ? 'rate_per_second')
    ORDER BY w.workspace_id FOR NO KEY UPDATE OF w) AS w;

-- name: lock_queue_rates
-- The same for queues with rates, after the workspaces, as in a claim.
SELECT 1 FROM {schema}.queues AS q
WHERE q.name IN (SELECT i.queue FROM {schema}.items AS i WHERE i.item_id = ANY ($1::text[])) AND q.rate_per_second > 0
ORDER BY q.name FOR NO KEY UPDATE;

-- name: rates
-- The rates of these workspaces, and when their next starts are due. A workspace that got a rate only now is skipped, not waited for.
-- args: as lock_rates, clock offset
SELECT w.workspace_id, {schema}.limit_of(w.overrides, 'rate_per_second', t.rate_per_second, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $2::bigint)::text, w.rate_ms::text
FROM {schema}.workspaces AS w JOIN {schema}.tiers AS t ON t.name = w.tier
WHERE w.workspace_id IN (SELECT i.workspace_id FROM {schema}.items AS i WHERE i.item_id = ANY ($1::text[]))
  AND {schema}.limit_of(w.overrides, 'rate_per_second', t.rate_per_second, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $2::bigint) > 0
FOR NO KEY UPDATE OF w SKIP LOCKED;

-- name: queue_rates
-- The same for queues.
SELECT q.name, q.rate_per_second::text, q.rate_ms::text
FROM {schema}.queues AS q
WHERE q.name IN (SELECT i.queue FROM {schema}.items AS i WHERE i.item_id = ANY ($1::text[])) AND q.rate_per_second > 0
FOR NO KEY UPDATE SKIP LOCKED;

-- name: set_rates
-- Sets when the next starts of workspaces are due. This transaction has locked them.
UPDATE {schema}.workspaces AS w SET rate_ms = g.rate_ms::double precision
FROM unnest($1::text[], $2::text[]) AS g (workspace_id, rate_ms) WHERE w.workspace_id = g.workspace_id;

-- name: set_queue_rates
-- The same for queues.
UPDATE {schema}.queues AS q SET rate_ms = g.rate_ms::double precision
FROM unnest($1::text[], $2::text[]) AS g (name, rate_ms) WHERE q.name = g.name;

-- name: lock_items
-- Locks items by their ids.
SELECT i.*
FROM unnest($1::text[]) AS g (item_id) CROSS JOIN LATERAL (
    SELECT item_id, number, workspace_id, workflow_id, version, execution_id, input, queue, status, priority, enqueued_ms, run_at_ms,
           key, body_digest, singleton, debounce, attempts, max_attempts, holder, fence, lease_until_ms, claimed_ms, dispatched_ms,
           finished_ms, error
    FROM {schema}.items WHERE item_id = g.item_id FOR NO KEY UPDATE
) AS i;

-- name: lock_marked
-- Locks items that a commit only moves: as lock_items, but without their inputs, which may be large.
SELECT i.*
FROM unnest($1::text[]) AS g (item_id) CROSS JOIN LATERAL (
    SELECT item_id, number, workspace_id, workflow_id, version, execution_id, ''::bytea AS input, queue, status, priority, enqueued_ms,
           run_at_ms, key, body_digest, singleton, debounce, attempts, max_attempts, holder, fence, lease_until_ms, claimed_ms,
           dispatched_ms, finished_ms, error
    FROM {schema}.items WHERE item_id = g.item_id FOR NO KEY UPDATE
) AS i;

-- name: lock_called
-- Locks the items that can stand for requests (by key, by singleton name, by debounce name), those that share a singleton name with
-- given items, and those that executions came from. Each is checked again once it is locked.
-- args: workspaces, keys, singleton names, debounce names, ids, executions. returns: as lock_items
SELECT item_id, number, workspace_id, workflow_id, version, execution_id, input, queue, status, priority, enqueued_ms, run_at_ms,
       key, body_digest, singleton, debounce, attempts, max_attempts, holder, fence, lease_until_ms, claimed_ms, dispatched_ms,
       finished_ms, error
FROM {schema}.items WHERE item_id IN (
    SELECT i.item_id FROM unnest($1::text[], $2::text[]) AS g (workspace_id, key)
    JOIN {schema}.items AS i ON i.workspace_id = g.workspace_id AND i.key = g.key
    UNION
    SELECT i.item_id FROM unnest($1::text[], $3::text[]) AS g (workspace_id, singleton)
    JOIN {schema}.items AS i ON i.workspace_id = g.workspace_id AND i.singleton = g.singleton AND i.finished_ms IS NULL
    UNION
    SELECT b.item_id FROM unnest($1::text[], $4::text[]) AS g (workspace_id, debounce) CROSS JOIN LATERAL (
        SELECT item_id FROM {schema}.items WHERE workspace_id = g.workspace_id AND debounce = g.debounce AND status = 'QUEUED'
        ORDER BY number DESC LIMIT 1) AS b
    UNION
    SELECT r.item_id FROM unnest($5::text[]) AS g (item_id) JOIN {schema}.items AS i ON i.item_id = g.item_id
    JOIN {schema}.items AS r ON r.workspace_id = i.workspace_id AND r.singleton = i.singleton AND r.finished_ms IS NULL
    UNION
    SELECT i.item_id FROM unnest($6::text[]) AS g (execution_id)
    JOIN {schema}.items AS i ON i.execution_id = g.execution_id AND i.status = 'DISPATCHED'
)
ORDER BY item_id FOR NO KEY UPDATE;

-- name: waiting
-- How many items each workspace may have waiting (NULL: unlimited) and how many wait. Counts no further than the limit plus the number
-- of items that may leave in this transaction. args: the workspaces, how many may leave, clock offset
SELECT w.workspace_id, w.queue_depth, CASE WHEN w.queue_depth IS NOT NULL THEN
    (SELECT count(*) FROM (SELECT 1 FROM {schema}.items AS i
                           WHERE i.workspace_id = w.workspace_id AND i.status = 'QUEUED' AND i.is_ready
                           LIMIT w.queue_depth + $2::bigint) AS ready)
  + (SELECT count(*) FROM (SELECT 1 FROM {schema}.items AS i
                           WHERE i.workspace_id = w.workspace_id AND i.status = 'QUEUED' AND NOT i.is_ready
                           LIMIT w.queue_depth + $2::bigint) AS delayed)
  END
FROM (SELECT w.workspace_id, {schema}.limit_of(w.overrides, 'queue_depth', t.queue_depth, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $3::bigint)::bigint AS queue_depth
      FROM unnest($1::text[]) AS g (workspace_id)
      JOIN {schema}.workspaces AS w ON w.workspace_id = g.workspace_id JOIN {schema}.tiers AS t ON t.name = w.tier) AS w;

-- name: insert_items
-- A plain insert: if another transaction was first, the unique violation makes this one start over.
INSERT INTO {schema}.items (item_id, workspace_id, workflow_id, version, execution_id, input, queue, status, priority, enqueued_ms,
                            run_at_ms, key, body_digest, singleton, debounce, attempts, max_attempts, holder, fence, lease_until_ms,
                            claimed_ms, dispatched_ms, finished_ms, error, is_ready)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::bytea[], $7::text[], $8::text[], $9::bigint[],
                     $10::bigint[], $11::bigint[], $12::text[], $13::text[], $14::text[], $15::text[], $16::bigint[], $17::bigint[],
                     $18::text[], $19::bigint[], $20::bigint[], $21::bigint[], $22::bigint[], $23::bigint[], $24::text[],
                     $25::boolean[]);

-- name: update_items
-- Updates items that this transaction has locked.
UPDATE {schema}.items AS i
SET execution_id = g.execution_id, status = g.status, run_at_ms = g.run_at_ms, attempts = g.attempts, holder = g.holder,
    lease_until_ms = g.lease_until_ms, claimed_ms = g.claimed_ms, dispatched_ms = g.dispatched_ms, finished_ms = g.finished_ms,
    error = g.error, is_ready = g.is_ready, debounce = g.debounce
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[],
            $10::bigint[], $11::text[], $12::boolean[], $13::text[])
     AS g (item_id, execution_id, status, run_at_ms, attempts, holder, lease_until_ms, claimed_ms, dispatched_ms, finished_ms, error,
           is_ready, debounce)
WHERE i.item_id = g.item_id;

-- name: update_requests
-- Gives items the workflow and input of the latest request with their debounce name.
UPDATE {schema}.items AS i SET workflow_id = g.workflow_id, version = g.version, input = g.input
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[]) AS g (item_id, workflow_id, version, input)
WHERE i.item_id = g.item_id;

-- name: recover_items
-- Returns items whose claims have expired, the longest first. It also forgets counts of state, which are made anew when they are needed.
-- args: limit, the error to note, clock offset, the channel
-- returns: the ids of the returned items
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $3::bigint AS now_ms
), expired AS MATERIALIZED (
    SELECT number, lease_until_ms FROM {schema}.items
    WHERE status = 'CLAIMED' AND lease_until_ms <= (SELECT now_ms FROM clock)
    ORDER BY lease_until_ms, number LIMIT $1::bigint FOR NO KEY UPDATE SKIP LOCKED
), returned AS (
    UPDATE {schema}.items AS i
    SET status = CASE WHEN i.attempts >= i.max_attempts THEN 'FAILED' ELSE 'QUEUED' END, error = $2::text, lease_until_ms = NULL,
        run_at_ms = CASE WHEN i.attempts >= i.max_attempts THEN i.run_at_ms ELSE now_ms END,
        holder = CASE WHEN i.attempts >= i.max_attempts THEN i.holder END,
        claimed_ms = CASE WHEN i.attempts >= i.max_attempts THEN i.claimed_ms END,
        finished_ms = CASE WHEN i.attempts >= i.max_attempts THEN now_ms END,
        is_ready = i.attempts < i.max_attempts
    FROM expired AS e, clock WHERE i.number = e.number
    RETURNING i.item_id, e.lease_until_ms, e.number
), forgotten AS (
    DELETE FROM {schema}.state_counts
), told AS (
    SELECT pg_notify($4::text, 'queue') FROM (SELECT 1 FROM returned LIMIT 1) AS any_of_them
)
SELECT item_id, (SELECT count(pg_notify) FROM told) FROM returned ORDER BY lease_until_ms, number;

-- name: drop_items
-- Deletes items of workspaces that ended with one of some statuses, so long ago or before. The items are selected once, as an array, and coalesce()
-- keeps the outer condition from matching an index: otherwise the planner, which expects few ended items, scans them all and selects the
-- old ones anew for each.
-- args: workspaces, statuses, how long ago in ms, limit, clock offset. returns: a row for each
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $5::bigint AS now_ms
), lanes (workspace_id, queue) AS (
    (SELECT i.workspace_id, i.queue FROM {schema}.items AS i WHERE i.finished_ms IS NOT NULL ORDER BY i.workspace_id, i.queue LIMIT 1)
    UNION ALL
    SELECT n.* FROM lanes AS l CROSS JOIN LATERAL (
        SELECT i.workspace_id, i.queue FROM {schema}.items AS i
        WHERE i.finished_ms IS NOT NULL AND (i.workspace_id, i.queue) > (l.workspace_id, l.queue)
        ORDER BY i.workspace_id, i.queue LIMIT 1) AS n
)
DELETE FROM {schema}.items
WHERE coalesce(finished_ms, -1) >= 0 AND number = ANY (ARRAY(
    SELECT o.number
    FROM clock CROSS JOIN lanes AS l CROSS JOIN LATERAL (
        SELECT i.number FROM {schema}.items AS i
        WHERE i.workspace_id = l.workspace_id AND i.queue = l.queue AND i.finished_ms IS NOT NULL
          AND i.finished_ms <= now_ms - $3::bigint
          AND i.status = ANY ($2::text[])
        ORDER BY i.finished_ms LIMIT $4::bigint) AS o
    WHERE l.workspace_id = ANY ($1::text[]) LIMIT $4::bigint))
RETURNING 1;

-- name: put_tier
-- Inserts or updates a tier once the claims under way are over. A lower rate also moves the next starts of the tier's workspaces, by
-- stepwell.model.queue_fairness.changed_rate_ms; they are all locked for that.
-- The last argument of this and the next two statements is the row that the change is based on: the columns after the name as a JSON
-- array, null for no row, NULL for any. If the row differs by now, nothing is written. Rows of these tables are never deleted.
-- returns: a row if it was written
WITH put AS (
    INSERT INTO {schema}.tiers AS t (name, concurrency, weight, rate_per_second, queue_depth, state_bytes, retention_seconds,
                                        child_concurrency, quotas)
    SELECT $1::text || held, $2::bigint, $3::text::double precision, $4::text::double precision, $5::bigint, $6::bigint,
           $7::text::double precision, $11::bigint, $12::text::jsonb
    FROM (SELECT pg_advisory_xact_lock(5378)::text AS held) AS gate
    WHERE coalesce($10::text, 'null') = 'null' OR EXISTS (SELECT FROM {schema}.tiers WHERE name = $1::text)
    ON CONFLICT (name) DO UPDATE
    SET concurrency = excluded.concurrency, weight = excluded.weight, rate_per_second = excluded.rate_per_second,
        queue_depth = excluded.queue_depth, state_bytes = excluded.state_bytes, retention_seconds = excluded.retention_seconds,
        child_concurrency = excluded.child_concurrency, quotas = excluded.quotas
    WHERE $10::text IS NULL OR $10::text::jsonb = jsonb_build_array(t.concurrency, t.weight, t.rate_per_second, t.queue_depth,
                                                                    t.state_bytes, t.retention_seconds, t.child_concurrency,
                                                                    coalesce(t.quotas, '{{}}'))
    RETURNING t.name
), forgotten AS (
    DELETE FROM {schema}.state_counts WHERE EXISTS (SELECT FROM put)
), clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $9::bigint AS now_ms
), held AS MATERIALIZED (
    SELECT workspace_id, rate_ms, overrides FROM {schema}.workspaces
    WHERE tier = (SELECT name FROM put) AND $4::text::double precision > 0
    ORDER BY workspace_id FOR NO KEY UPDATE
), changed AS (
    UPDATE {schema}.workspaces AS w SET rate_ms = latest_ms
    FROM (SELECT h.workspace_id, h.rate_ms AS before_ms, now_ms,
                 {schema}.limit_of(h.overrides, 'rate_per_second', $4::text::double precision, now_ms) AS rate
          FROM held AS h, clock) AS h CROSS JOIN LATERAL (SELECT now_ms + greatest(1000, 1000 / nullif(rate, 0)) AS latest_ms) AS l
    WHERE w.workspace_id = h.workspace_id AND rate > 0 AND before_ms > latest_ms
)
SELECT pg_notify($8::text, 'queue')::text FROM put;

-- name: put_workspace
-- Inserts or updates a workspace, if its tier exists. Its creation time and pass stay; its next start follows the new rate.
-- returns: a row if it was written
WITH put AS (
    INSERT INTO {schema}.workspaces AS w (workspace_id, tier, is_paused, created_ms, overrides)
    SELECT $1::text, name, $3::boolean, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $4::bigint, $7::text::jsonb
    FROM {schema}.tiers
    WHERE name = $2::text
      AND (coalesce($6::text, 'null') = 'null' OR EXISTS (SELECT FROM {schema}.workspaces WHERE workspace_id = $1::text))
    ON CONFLICT (workspace_id) DO UPDATE
    SET tier = excluded.tier, is_paused = excluded.is_paused, overrides = excluded.overrides, rate_ms = least(w.rate_ms, (
        SELECT excluded.created_ms + greatest(1000, 1000 / nullif(r.rate, 0))
        FROM {schema}.tiers AS t CROSS JOIN LATERAL (
            SELECT {schema}.limit_of(excluded.overrides, 'rate_per_second', t.rate_per_second, excluded.created_ms) AS rate) AS r
        WHERE t.name = excluded.tier AND r.rate > 0))
    WHERE $6::text IS NULL OR $6::text::jsonb = jsonb_build_array(w.tier, w.is_paused, w.created_ms, coalesce(w.overrides, '{{}}'))
    RETURNING w.workspace_id
), forgotten AS (
    DELETE FROM {schema}.state_counts WHERE workspace_id = (SELECT workspace_id FROM put)
)
SELECT pg_notify($5::text, 'queue')::text FROM put;

-- name: put_queue
-- Inserts or updates a queue's settings once the claims under way are over.
-- returns: a row if it was written
INSERT INTO {schema}.queues AS q (name, is_paused, concurrency, rate_per_second)
SELECT $1::text || held, $2::boolean, $3::bigint, $4::text::double precision
FROM (SELECT pg_advisory_xact_lock(5378)::text AS held) AS gate
WHERE coalesce($7::text, 'null') = 'null' OR EXISTS (SELECT FROM {schema}.queues WHERE name = $1::text)
ON CONFLICT (name) DO UPDATE
SET is_paused = excluded.is_paused, concurrency = excluded.concurrency, rate_per_second = excluded.rate_per_second,
    rate_ms = least(q.rate_ms, CASE WHEN excluded.rate_per_second > 0 THEN
        floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $6::bigint + greatest(1000, 1000 / excluded.rate_per_second) END)
WHERE $7::text IS NULL OR $7::text::jsonb = jsonb_build_array(q.is_paused, q.concurrency, q.rate_per_second)
RETURNING pg_notify($5::text, 'queue')::text;

-- name: tiers
SELECT name, concurrency, weight::text, rate_per_second::text, queue_depth, state_bytes, retention_seconds::text, child_concurrency, quotas::text
FROM {schema}.tiers ORDER BY name;

-- name: next_ready
-- When the next delayed item becomes ready: the first entry of an index.
SELECT run_at_ms FROM {schema}.items WHERE status = 'QUEUED' AND NOT is_ready ORDER BY run_at_ms LIMIT 1;

-- name: has_ready
-- A row if any item is ready: the first entry of an index.
SELECT 1 FROM {schema}.items WHERE status = 'QUEUED' AND is_ready ORDER BY workspace_id, queue, workflow_id, priority DESC, number LIMIT 1;

-- name: workspaces
SELECT workspace_id, tier, is_paused, created_ms, overrides::text FROM {schema}.workspaces ORDER BY workspace_id;

-- name: queues
SELECT name, is_paused, concurrency, rate_per_second::text FROM {schema}.queues ORDER BY name;

-- name: item
SELECT item_id, number, workspace_id, workflow_id, version, execution_id, input, queue, status, priority, enqueued_ms, run_at_ms, key,
       body_digest, singleton, debounce, attempts, max_attempts, holder, fence, lease_until_ms, claimed_ms, dispatched_ms, finished_ms,
       error
FROM {schema}.items WHERE item_id = $1::text;

-- name: find_items
-- A page of items, newest first. A NULL filter matches everything. args: queue, status, workflow, number before the page, limit
SELECT item_id, number, workspace_id, workflow_id, version, execution_id, input, queue, status, priority, enqueued_ms, run_at_ms, key,
       body_digest, singleton, debounce, attempts, max_attempts, holder, fence, lease_until_ms, claimed_ms, dispatched_ms, finished_ms,
       error
FROM {schema}.items
WHERE ($1::text IS NULL OR queue = $1::text) AND ($2::text IS NULL OR status = $2::text) AND ($3::text IS NULL OR workflow_id = $3::text) AND number < $4::bigint
ORDER BY number DESC LIMIT $5::bigint;

-- name: find_items_of
-- The same for one workspace, by its own index. args: as find_items, and the workspace
SELECT item_id, number, workspace_id, workflow_id, version, execution_id, input, queue, status, priority, enqueued_ms, run_at_ms, key,
       body_digest, singleton, debounce, attempts, max_attempts, holder, fence, lease_until_ms, claimed_ms, dispatched_ms, finished_ms,
       error
FROM {schema}.items
WHERE workspace_id = $6::text AND ($1::text IS NULL OR queue = $1::text) AND ($2::text IS NULL OR status = $2::text)
  AND ($3::text IS NULL OR workflow_id = $3::text) AND number < $4::bigint
ORDER BY number DESC LIMIT $5::bigint;

-- name: find_dead_items
-- The same for FAILED or CANCELLED items of all workspaces, by an index of these alone. args: as find_items
SELECT item_id, number, workspace_id, workflow_id, version, execution_id, input, queue, status, priority, enqueued_ms, run_at_ms, key,
       body_digest, singleton, debounce, attempts, max_attempts, holder, fence, lease_until_ms, claimed_ms, dispatched_ms, finished_ms,
       error
FROM {schema}.items
WHERE status IN ('FAILED', 'CANCELLED') AND ($1::text IS NULL OR queue = $1::text) AND status = $2::text
  AND ($3::text IS NULL OR workflow_id = $3::text) AND number < $4::bigint
ORDER BY number DESC LIMIT $5::bigint;

-- name: lanes
-- What waits and runs, by workspace and queue. args: a workspace (NULL: all), clock offset, limit of recent waits
-- returns: workspace, queue, ready, delayed, claimed, dispatched, since when the oldest is ready, the latest waits as text
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $2::bigint AS now_ms
), lanes (workspace_id, queue) AS (
    (SELECT i.workspace_id, i.queue FROM {schema}.items AS i WHERE i.finished_ms IS NOT NULL ORDER BY i.workspace_id, i.queue LIMIT 1)
    UNION ALL
    SELECT n.* FROM lanes AS l CROSS JOIN LATERAL (
        SELECT i.workspace_id, i.queue FROM {schema}.items AS i
        WHERE i.finished_ms IS NOT NULL AND (i.workspace_id, i.queue) > (l.workspace_id, l.queue)
        ORDER BY i.workspace_id, i.queue LIMIT 1) AS n
), counted AS (
    SELECT i.workspace_id, i.queue,
           count(*) FILTER (WHERE i.status = 'QUEUED' AND i.run_at_ms <= now_ms) AS ready,
           count(*) FILTER (WHERE i.status = 'QUEUED' AND i.run_at_ms > now_ms) AS delayed,
           count(*) FILTER (WHERE i.status = 'CLAIMED') AS claimed, count(*) FILTER (WHERE i.status = 'DISPATCHED') AS dispatched,
           min(greatest(i.run_at_ms, i.enqueued_ms)) FILTER (WHERE i.status = 'QUEUED' AND i.run_at_ms <= now_ms) AS oldest
    FROM {schema}.items AS i CROSS JOIN clock
    WHERE i.status IN ('QUEUED', 'CLAIMED', 'DISPATCHED') AND ($1::text IS NULL OR i.workspace_id = $1::text)
    GROUP BY i.workspace_id, i.queue
), named AS (
    SELECT workspace_id, queue FROM counted UNION SELECT workspace_id, queue FROM lanes
)
SELECT n.workspace_id, n.queue, coalesce(c.ready, 0), coalesce(c.delayed, 0), coalesce(c.claimed, 0), coalesce(c.dispatched, 0), c.oldest,
       (SELECT coalesce(string_agg(w.wait::text, ' ' ORDER BY w.wait), '') FROM (
            SELECT i.claimed_ms - greatest(i.run_at_ms, i.enqueued_ms) AS wait
            FROM ((SELECT e.claimed_ms, e.run_at_ms, e.enqueued_ms FROM {schema}.items AS e  -- the latest to end
                   WHERE e.workspace_id = n.workspace_id AND e.queue = n.queue AND e.finished_ms IS NOT NULL AND e.claimed_ms IS NOT NULL
                   ORDER BY e.finished_ms DESC LIMIT $3::bigint)
                  UNION ALL
                  SELECT a.claimed_ms, a.run_at_ms, a.enqueued_ms FROM {schema}.items AS a
                  WHERE a.workspace_id = n.workspace_id AND a.queue = n.queue AND a.status IN ('CLAIMED', 'DISPATCHED')
                    AND a.claimed_ms IS NOT NULL) AS i
            ORDER BY i.claimed_ms DESC LIMIT $3::bigint) AS w)
FROM named AS n LEFT JOIN counted AS c ON c.workspace_id = n.workspace_id AND c.queue = n.queue
WHERE $1::text IS NULL OR n.workspace_id = $1::text
ORDER BY n.workspace_id, n.queue;
