-- The queue's statements of the SQLite store. All run inside the one write transaction, so what one counts the next one can rely on.

-- name: add_item
-- Adds an item unless its id is there.
INSERT INTO items (item_id, workspace_id, workflow_id, version, execution_id, input, queue, status, priority, enqueued_ms, run_at_ms,
                   key, body_digest, singleton, debounce, max_attempts, is_ready)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'QUEUED', ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?10 <= ?9)
ON CONFLICT (item_id) DO NOTHING;

-- name: add_started_item
-- Adds the item of an execution that is created in the same transaction: DISPATCHED from the start, for no reason to wait.
INSERT INTO items (item_id, workspace_id, workflow_id, version, execution_id, input, queue, status, priority, enqueued_ms, run_at_ms,
                   body_digest, max_attempts, attempts, fence, claimed_ms, dispatched_ms, is_ready)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?10, ?11, ?12, ?13, ?14, ?10, ?10, 0);

-- name: newest_item
SELECT coalesce(max(number), 0) FROM items;

-- name: item
SELECT item_id, number, workspace_id, workflow_id, version, execution_id, input, queue, status, priority, enqueued_ms, run_at_ms, key,
       body_digest, singleton, debounce, attempts, max_attempts, holder, fence, lease_until_ms, claimed_ms, dispatched_ms, finished_ms,
       error
FROM items WHERE item_id = ?;

-- name: item_with_key
SELECT item_id FROM items WHERE workspace_id = ?1 AND key = ?2;

-- name: single_item
SELECT item_id FROM items WHERE workspace_id = ?1 AND singleton = ?2 AND singleton IS NOT NULL AND finished_ms IS NULL;

-- name: bouncing_item
SELECT item_id FROM items WHERE workspace_id = ?1 AND debounce = ?2 AND debounce IS NOT NULL AND status = 'QUEUED'
ORDER BY number DESC LIMIT 1;

-- name: item_of_execution
SELECT item_id FROM items WHERE execution_id = ?1 AND status = 'DISPATCHED';

-- name: change_item
-- Writes everything of an item that may change.
UPDATE items SET workflow_id = ?2, version = ?3, execution_id = ?4, input = ?5, status = ?6, run_at_ms = ?7, attempts = ?8, holder = ?9,
                 lease_until_ms = ?10, claimed_ms = ?11, dispatched_ms = ?12, finished_ms = ?13, error = ?14,
                 is_ready = ?6 = 'QUEUED' AND ?7 <= ?15, debounce = ?16
WHERE number = ?1;

-- name: mark_item
-- Moves an item on without touching what no mark changes.
UPDATE items SET status = ?2, lease_until_ms = NULL, dispatched_ms = ?3, finished_ms = ?4, error = ?5, is_ready = 0 WHERE number = ?1;

-- name: drop_item
DELETE FROM items WHERE number = ?1;

-- name: tenant
-- A workspace's limit of waiting items (a row without one: no limit).
SELECT iif(workspaces.overrides ->> '$.queue_depth.until_ms' > ?2, workspaces.overrides ->> '$.queue_depth.value', tiers.queue_depth)
FROM workspaces JOIN tiers ON tiers.name = workspaces.tier WHERE workspace_id = ?1;

-- name: slots
-- How many executions a workspace may run at once (NULL: no limit), whether it is paused, and, if it is limited, how many it runs.
SELECT concurrency, is_paused,
       iif(concurrency IS NULL, 0, (SELECT count(*) FROM items INDEXED BY items_active
                                    WHERE workspace_id = ?1 AND status IN ('CLAIMED', 'DISPATCHED')))
FROM (SELECT iif(workspaces.overrides ->> '$.concurrency.until_ms' > ?2, workspaces.overrides ->> '$.concurrency.value', tiers.concurrency) AS concurrency, is_paused
      FROM workspaces JOIN tiers ON tiers.name = workspaces.tier WHERE workspaces.workspace_id = ?1);

-- name: count_pending
-- How many items of a workspace wait, counted no further than asked.
SELECT (SELECT count(*) FROM (SELECT 1 FROM items INDEXED BY items_ready
                              WHERE workspace_id = ?1 AND status = 'QUEUED' AND is_ready = 1 LIMIT ?2))
     + (SELECT count(*) FROM (SELECT 1 FROM items INDEXED BY items_delayed_by_workspace
                              WHERE workspace_id = ?1 AND status = 'QUEUED' AND is_ready = 0 LIMIT ?2));

-- name: promote
-- Shows claims the items whose time has come, the earliest first.
UPDATE items SET is_ready = 1 WHERE number IN (
    SELECT number FROM items WHERE status = 'QUEUED' AND is_ready = 0 AND run_at_ms <= ?1 ORDER BY run_at_ms LIMIT ?2);

-- name: outlook
-- All that a claim has to know, in one row; args: now, the queues and the workflows that are asked for, or NULL for any, and how many
-- items it takes at most. Every lane with something ready, and its first item, is one step in the index for each lane, however long it
-- is. Where there are no more lanes than items to take, each comes with several items: twice its share. The indexes of used slots are
-- named, since one of all items of a workspace would serve, too, and take longer.
WITH RECURSIVE lanes (workspace_id, queue, workflow_id, priority, number) AS (
    SELECT * FROM (
        SELECT workspace_id, queue, workflow_id, priority, number FROM items
        WHERE status = 'QUEUED' AND is_ready = 1
        ORDER BY workspace_id, queue, workflow_id, priority DESC, number LIMIT 1)
    UNION ALL
    SELECT items.workspace_id, items.queue, items.workflow_id, items.priority, items.number
    FROM lanes JOIN items ON items.number = coalesce(  -- three questions, since SQLite walks through a comparison of rows
        (SELECT number FROM items
         WHERE status = 'QUEUED' AND is_ready = 1
           AND workspace_id = lanes.workspace_id AND queue = lanes.queue AND workflow_id > lanes.workflow_id
         ORDER BY workflow_id, priority DESC, number LIMIT 1),
        (SELECT number FROM items
         WHERE status = 'QUEUED' AND is_ready = 1 AND workspace_id = lanes.workspace_id AND queue > lanes.queue
         ORDER BY queue, workflow_id, priority DESC, number LIMIT 1),
        (SELECT number FROM items
         WHERE status = 'QUEUED' AND is_ready = 1 AND workspace_id > lanes.workspace_id
         ORDER BY workspace_id, queue, workflow_id, priority DESC, number LIMIT 1))
),
wanted AS MATERIALIZED (
    SELECT * FROM lanes
    WHERE (?2 IS NULL OR queue IN (SELECT value FROM json_each(?2)))
      AND (?3 IS NULL OR workflow_id IN (SELECT value FROM json_each(?3)))
),
tenants AS MATERIALIZED (
    SELECT name, is_paused, concurrency, rate_per_second, rate_ms, weight, passed,
           iif(concurrency IS NULL, 0, (SELECT count(*) FROM items INDEXED BY items_active
                                        WHERE workspace_id = limits.name AND status IN ('CLAIMED', 'DISPATCHED'))) AS used
    FROM (
        SELECT workspaces.workspace_id AS name, is_paused, rate_ms, passed,
               iif(workspaces.overrides ->> '$.concurrency.until_ms' > ?1, workspaces.overrides ->> '$.concurrency.value', tiers.concurrency) AS concurrency,
               iif(workspaces.overrides ->> '$.rate_per_second.until_ms' > ?1, workspaces.overrides ->> '$.rate_per_second.value', tiers.rate_per_second) AS rate_per_second,
               iif(workspaces.overrides ->> '$.weight.until_ms' > ?1, workspaces.overrides ->> '$.weight.value', tiers.weight) AS weight
        FROM (SELECT DISTINCT workspace_id FROM wanted) AS those
        CROSS JOIN workspaces ON workspaces.workspace_id = those.workspace_id
        JOIN tiers ON tiers.name = workspaces.tier) AS limits
),
-- One more than can be taken, so that no second query is needed for what comes after the last one.
chunk (size) AS MATERIALIZED (
    SELECT iif(count(*) > ?4, 1, 1 + min(
        ?4, 2 * ?4 / max(count(*), 1) + 1,
        (SELECT max(coalesce(max(iif(concurrency IS NULL, ?4, concurrency - used)), 0), 0) FROM tenants WHERE NOT is_paused)))
    FROM wanted
)
SELECT
    EXISTS (SELECT 1 FROM items WHERE status = 'QUEUED' AND is_ready = 0 AND run_at_ms <= ?1),
    (SELECT turn FROM turns),
    (SELECT size FROM chunk),
    (SELECT json_group_array(json_array(workspace_id, queue, workflow_id, json((
         SELECT json_group_array(json_array(-priority, number) ORDER BY priority DESC, number) FROM (
             SELECT priority, number FROM items
             WHERE status = 'QUEUED' AND is_ready = 1 AND workspace_id = wanted.workspace_id AND queue = wanted.queue
               AND workflow_id = wanted.workflow_id
             ORDER BY priority DESC, number LIMIT (SELECT size FROM chunk))))))
     FROM wanted),
    (SELECT json_group_array(json_array(
         name, is_paused, concurrency, used,
         iif(rate_per_second IS NULL, NULL, format('%!.17g', rate_per_second)), format('%!.17g', rate_ms),
         format('%!.17g', weight), format('%!.17g', passed)))
     FROM tenants),
    (SELECT json_group_array(json_array(
         name, is_paused, concurrency,
         iif(concurrency IS NULL, 0, (SELECT count(*) FROM items INDEXED BY items_active_in_queue
                                      WHERE queue = name AND status IN ('CLAIMED', 'DISPATCHED'))),
         iif(rate_per_second IS NULL, NULL, format('%!.17g', rate_per_second)), format('%!.17g', rate_ms)))
     FROM queues WHERE name IN (SELECT queue FROM wanted));

-- name: first_of_lanes
-- The first items of each lane in a list of [workspace, queue, workflow], in one row.
SELECT json_group_array(json_array(lane.key, -priority, number) ORDER BY lane.key, priority DESC, number)
FROM jsonb_each(?1) AS lane CROSS JOIN items ON number IN (
    SELECT number FROM items
    WHERE status = 'QUEUED' AND is_ready = 1 AND workspace_id = lane.value ->> 0 AND queue = lane.value ->> 1
      AND workflow_id = lane.value ->> 2
    ORDER BY priority DESC, number LIMIT ?2);

-- name: more_of_lane
-- The items of a lane behind one, in one row.
SELECT json_group_array(json_array(-priority, number) ORDER BY priority DESC, number) FROM (
    SELECT priority, number FROM items
    WHERE status = 'QUEUED' AND is_ready = 1 AND workspace_id = ?1 AND queue = ?2 AND workflow_id = ?3 AND priority <= -?4
      AND (priority < -?4 OR number > ?5)
    ORDER BY priority DESC, number LIMIT ?6);

-- name: chosen_items
-- The items in a list of numbers, in one row; without inputs of more bytes than asked.
SELECT json_group_array(json_array(number, item_id, workspace_id, workflow_id, version, execution_id,
                                   iif(length(input) <= ?2, CAST(input AS TEXT), NULL), fence, attempts, queue, enqueued_ms))
FROM items WHERE number IN (SELECT value FROM json_each(?1));

-- name: input_of_item
SELECT input FROM items WHERE number = ?1;

-- name: claim
-- Writes a claim (see the view).
INSERT INTO claims (numbers, holder, until_ms, now_ms, turn, workspaces, queues) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- name: expired_claims
-- Items whose claim has ended, the longest first.
SELECT item_id FROM items WHERE status = 'CLAIMED' AND lease_until_ms <= ?1 ORDER BY lease_until_ms, number LIMIT ?2;

-- name: old_items
-- Items of workspaces that ended with one of some statuses until a time; lane by lane, as they are in the index.
-- args: workspaces, statuses, the time, how many
WITH RECURSIVE lanes (workspace_id, queue) AS (
    SELECT * FROM (SELECT workspace_id, queue FROM items WHERE finished_ms IS NOT NULL ORDER BY workspace_id, queue LIMIT 1)
    UNION ALL
    SELECT items.workspace_id, items.queue
    FROM lanes JOIN items ON items.number = coalesce(
        (SELECT number FROM items WHERE finished_ms IS NOT NULL AND workspace_id = lanes.workspace_id AND queue > lanes.queue
         ORDER BY queue LIMIT 1),
        (SELECT number FROM items WHERE finished_ms IS NOT NULL AND workspace_id > lanes.workspace_id
         ORDER BY workspace_id, queue LIMIT 1))
)
SELECT items.number
FROM lanes CROSS JOIN items INDEXED BY items_ended
  ON items.workspace_id = lanes.workspace_id AND items.queue = lanes.queue AND items.finished_ms IS NOT NULL
     AND items.finished_ms <= ?3 AND items.status IN (SELECT value FROM json_each(?2))
WHERE lanes.workspace_id IN (SELECT value FROM json_each(?1))
LIMIT ?4;

-- name: put_tier
INSERT OR REPLACE INTO tiers (name, concurrency, weight, rate_per_second, queue_depth, state_bytes, retention_seconds, child_concurrency,
                              quotas)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: change_rates
-- What a tier's rate makes of the next starts of its workspaces; see model.claiming.changed_rate_ms.
UPDATE workspaces SET rate_ms = ?2 + max(1000, 1000 / rate)
FROM (SELECT workspace_id AS name, iif(workspaces.overrides ->> '$.rate_per_second.until_ms' > ?2, workspaces.overrides ->> '$.rate_per_second.value', tiers.rate_per_second) AS rate
      FROM workspaces JOIN tiers ON tiers.name = workspaces.tier WHERE tier = ?1) AS limits
WHERE workspace_id = name AND rate > 0 AND rate_ms > ?2 + max(1000, 1000 / rate);

-- name: rate_of_workspace
-- The rate of a workspace, and when its next start is due; no row without a rate.
SELECT rate, rate_ms
FROM (SELECT iif(workspaces.overrides ->> '$.rate_per_second.until_ms' > ?2, workspaces.overrides ->> '$.rate_per_second.value', tiers.rate_per_second) AS rate, rate_ms
      FROM workspaces JOIN tiers ON tiers.name = workspaces.tier WHERE workspace_id = ?1)
WHERE rate > 0;

-- name: rate_of_queue
-- The same of a queue.
SELECT rate_per_second, rate_ms FROM queues WHERE name = ?1 AND rate_per_second > 0;

-- name: set_rate_of_workspace
UPDATE workspaces SET rate_ms = ?2 WHERE workspace_id = ?1;

-- name: set_rate_of_queue
UPDATE queues SET rate_ms = ?2 WHERE name = ?1;

-- name: put_workspace
-- Makes a workspace or changes it; when it was made and its pass stay, and its next start as the rate allows.
INSERT INTO workspaces (workspace_id, tier, is_paused, created_ms, overrides)
SELECT ?1, name, ?3, ?4, ?5 FROM tiers WHERE name = ?2
ON CONFLICT (workspace_id) DO UPDATE SET tier = excluded.tier, is_paused = excluded.is_paused, overrides = excluded.overrides, rate_ms = (
    SELECT iif(rate > 0, min(workspaces.rate_ms, ?4 + max(1000, 1000 / rate)), workspaces.rate_ms)
    FROM (SELECT iif(?5 ->> '$.rate_per_second.until_ms' > ?4, ?5 ->> '$.rate_per_second.value', rate_per_second) AS rate
          FROM tiers WHERE name = ?2));

-- name: put_queue
INSERT INTO queues (name, is_paused, concurrency, rate_per_second) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (name) DO UPDATE SET is_paused = excluded.is_paused, concurrency = excluded.concurrency,
                                 rate_per_second = excluded.rate_per_second,
                                 rate_ms = iif(excluded.rate_per_second > 0,
                                               min(rate_ms, ?5 + max(1000, 1000 / excluded.rate_per_second)), rate_ms);

-- name: tier
SELECT name, concurrency, weight, rate_per_second, queue_depth, state_bytes, retention_seconds, child_concurrency, quotas FROM tiers WHERE name = ?;

-- name: workspace
SELECT workspace_id, tier, is_paused, created_ms, overrides FROM workspaces WHERE workspace_id = ?;

-- name: queue
SELECT name, is_paused, concurrency, rate_per_second FROM queues WHERE name = ?;

-- name: tiers
SELECT name, concurrency, weight, rate_per_second, queue_depth, state_bytes, retention_seconds, child_concurrency, quotas FROM tiers ORDER BY name;

-- name: workspaces
SELECT workspace_id, tier, is_paused, created_ms, overrides FROM workspaces ORDER BY workspace_id;

-- name: queues
SELECT name, is_paused, concurrency, rate_per_second FROM queues ORDER BY name;

-- name: next_ready
-- When the next delayed item becomes ready: the first entry of an index.
SELECT run_at_ms FROM items WHERE status = 'QUEUED' AND is_ready = 0 ORDER BY run_at_ms LIMIT 1;

-- name: has_ready
-- A row if there is anything for claims to find: the first entry of an index.
SELECT 1 FROM items INDEXED BY items_ready WHERE status = 'QUEUED' AND is_ready = 1 LIMIT 1;

-- name: find_items
-- A page of items, newest first; a filter that is NULL is no filter. args: queue, status, workflow, number of the one before, how many
SELECT item_id, number, workspace_id, workflow_id, version, execution_id, input, queue, status, priority, enqueued_ms, run_at_ms, key,
       body_digest, singleton, debounce, attempts, max_attempts, holder, fence, lease_until_ms, claimed_ms, dispatched_ms, finished_ms,
       error
FROM items
WHERE (?1 IS NULL OR queue = ?1) AND (?2 IS NULL OR status = ?2) AND (?3 IS NULL OR workflow_id = ?3) AND number < ?4
ORDER BY number DESC LIMIT ?5;

-- name: find_items_of
-- The same of one workspace, through its own index. args: as find_items, and the workspace
SELECT item_id, number, workspace_id, workflow_id, version, execution_id, input, queue, status, priority, enqueued_ms, run_at_ms, key,
       body_digest, singleton, debounce, attempts, max_attempts, holder, fence, lease_until_ms, claimed_ms, dispatched_ms, finished_ms,
       error
FROM items
WHERE workspace_id = ?6 AND (?1 IS NULL OR queue = ?1) AND (?2 IS NULL OR status = ?2)
  AND (?3 IS NULL OR workflow_id = ?3) AND number < ?4
ORDER BY number DESC LIMIT ?5;

-- name: find_dead_items
-- The same of all workspaces, of items that are FAILED or CANCELLED, however few of them there are. args: as find_items
SELECT item_id, number, workspace_id, workflow_id, version, execution_id, input, queue, status, priority, enqueued_ms, run_at_ms, key,
       body_digest, singleton, debounce, attempts, max_attempts, holder, fence, lease_until_ms, claimed_ms, dispatched_ms, finished_ms,
       error
FROM items
WHERE status IN ('FAILED', 'CANCELLED') AND (?1 IS NULL OR queue = ?1) AND status = ?2
  AND (?3 IS NULL OR workflow_id = ?3) AND number < ?4
ORDER BY number DESC LIMIT ?5;

-- name: waiting_lanes
SELECT workspace_id, queue, count(*) FILTER (WHERE run_at_ms <= ?2), count(*) FILTER (WHERE run_at_ms > ?2),
       min(max(run_at_ms, enqueued_ms)) FILTER (WHERE run_at_ms <= ?2)
FROM (SELECT workspace_id, queue, run_at_ms, enqueued_ms FROM items WHERE status = 'QUEUED' AND is_ready = 1
      UNION ALL
      SELECT workspace_id, queue, run_at_ms, enqueued_ms FROM items WHERE status = 'QUEUED' AND is_ready = 0)
WHERE ?1 IS NULL OR workspace_id = ?1 GROUP BY workspace_id, queue;

-- name: active_lanes
SELECT workspace_id, queue, count(*) FILTER (WHERE status = 'CLAIMED'), count(*) FILTER (WHERE status = 'DISPATCHED')
FROM items WHERE status IN ('CLAIMED', 'DISPATCHED') AND (?1 IS NULL OR workspace_id = ?1) GROUP BY workspace_id, queue;

-- name: ended_lanes
-- Every lane with something that has ended and is still there, one step in the index for each.
WITH RECURSIVE lanes (workspace_id, queue) AS (
    SELECT * FROM (SELECT workspace_id, queue FROM items WHERE finished_ms IS NOT NULL ORDER BY workspace_id, queue LIMIT 1)
    UNION ALL
    SELECT items.workspace_id, items.queue
    FROM lanes JOIN items ON items.number = coalesce(
        (SELECT number FROM items WHERE finished_ms IS NOT NULL AND workspace_id = lanes.workspace_id AND queue > lanes.queue
         ORDER BY queue LIMIT 1),
        (SELECT number FROM items WHERE finished_ms IS NOT NULL AND workspace_id > lanes.workspace_id
         ORDER BY workspace_id, queue LIMIT 1))
)
SELECT workspace_id, queue FROM lanes WHERE ?1 IS NULL OR workspace_id = ?1;

-- name: waits
-- How long the latest started items of a lane had been ready; of those that have ended, the latest to end are looked at.
SELECT wait FROM (
    SELECT * FROM (
        SELECT claimed_ms, claimed_ms - max(run_at_ms, enqueued_ms) AS wait FROM items INDEXED BY items_ended
        WHERE workspace_id = ?1 AND queue = ?2 AND finished_ms IS NOT NULL AND claimed_ms IS NOT NULL
        ORDER BY finished_ms DESC LIMIT ?3)
    UNION ALL
    SELECT claimed_ms, claimed_ms - max(run_at_ms, enqueued_ms) FROM items INDEXED BY items_active
    WHERE workspace_id = ?1 AND queue = ?2 AND status IN ('CLAIMED', 'DISPATCHED') AND claimed_ms IS NOT NULL)
ORDER BY claimed_ms DESC LIMIT ?3;
