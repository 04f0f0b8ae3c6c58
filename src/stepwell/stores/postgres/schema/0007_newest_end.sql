-- Both functions as before, but that they look for what waits from its newest end. At the other end stand the index entries of items that
-- were claimed, until the next vacuum: to pass over 30,000 of them takes 0.1 to 0.3 ms, and a request needs little more than that.

-- Adds one item as the claim behind it would leave it, if that is plain to see: nothing else waits, its workspace may start one more by
-- everything that limits it, and nothing is said about its queue. If the claim only rides along, others may wait, but none of the same
-- workspace, which must not be ahead of its turn. Else does nothing, and the two are made one after the other. It is what most requests
-- to a system with room come to, and saves them a row that is written twice. Nobody is notified, since nobody else can start it. The
-- workspace is locked before its active items are counted, in a later statement, as in claim_items.
-- args: the item; holder, lease, queues and workflows of the claim (empty: all), whether it rides along; how far the clock is ahead
-- returns: a row if it was added and claimed
CREATE OR REPLACE FUNCTION {schema}.enqueue_claimed(
    new_id text, new_workspace text, new_workflow text, new_version bigint, new_execution text, new_input bytea, new_queue text,
    new_priority bigint, new_digest text, most_attempts bigint, by_holder text, lease_ms bigint, of_queues text[], of_workflows text[],
    is_riding boolean, ahead_ms bigint
) RETURNS TABLE (fence bigint, attempts bigint, until_ms bigint, enqueued_ms bigint)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + ahead_ms;
    turn double precision := (SELECT max(w.last_tag) FROM {schema}.workspaces AS w);
    -- No EXISTS, for which the server would choose the end by itself.
    others_wait boolean := coalesce((
            SELECT true FROM {schema}.items AS i WHERE i.status = 'PENDING' AND i.is_ready
            ORDER BY i.workspace_id DESC, i.queue DESC, i.workflow_id DESC, i.priority, i.number DESC LIMIT 1), false)
        OR EXISTS (SELECT 1 FROM {schema}.items AS i WHERE i.status = 'PENDING' AND NOT i.is_ready AND i.run_at_ms <= now_ms);
    base double precision;
    share double precision;
    most_active bigint;
    most_waiting bigint;
BEGIN
    IF (cardinality(of_queues) > 0 AND NOT new_queue = ANY (of_queues))
       OR (cardinality(of_workflows) > 0 AND NOT new_workflow = ANY (of_workflows))
       OR (others_wait AND NOT is_riding)
       OR EXISTS (SELECT 1 FROM {schema}.queues AS q WHERE q.name = new_queue) THEN
        RETURN;
    END IF;
    IF others_wait AND (
        (SELECT true FROM {schema}.items AS i WHERE i.workspace_id = new_workspace AND i.status = 'PENDING' AND i.is_ready
         ORDER BY i.workspace_id DESC, i.queue DESC, i.workflow_id DESC, i.priority, i.number DESC LIMIT 1)
        OR EXISTS (SELECT 1 FROM {schema}.items AS i
                   WHERE i.workspace_id = new_workspace AND i.status = 'PENDING' AND NOT i.is_ready AND i.run_at_ms <= now_ms)) THEN
        RETURN;
    END IF;
    SELECT greatest(w.passed, turn), 1 / t.weight, t.concurrency, t.queue_depth
    INTO base, share, most_active, most_waiting
    FROM {schema}.workspaces AS w JOIN {schema}.tiers AS t ON t.name = w.tier
    WHERE w.workspace_id = new_workspace AND NOT w.is_paused AND t.rate_per_second IS NULL
      AND (w.passed <= turn OR NOT others_wait)
    FOR NO KEY UPDATE OF w SKIP LOCKED;
    IF NOT FOUND
       OR (CASE WHEN most_active IS NOT NULL THEN most_active <= (
              SELECT count(*) FROM {schema}.items AS i WHERE i.workspace_id = new_workspace AND i.status IN ('CLAIMED', 'DISPATCHED')) END)
       OR (CASE WHEN most_waiting IS NOT NULL THEN most_waiting <= (
              SELECT count(*) FROM (
                  SELECT 1 FROM {schema}.items AS i
                  WHERE i.workspace_id = new_workspace AND i.status = 'PENDING' AND NOT i.is_ready LIMIT most_waiting) AS delayed) END) THEN
        RETURN;
    END IF;
    INSERT INTO {schema}.items (item_id, workspace_id, workflow_id, version, execution_id, input, queue, status, priority, enqueued_ms,
                                run_at_ms, body_digest, attempts, max_attempts, holder, fence, lease_until_ms, claimed_ms, is_ready)
    VALUES (new_id, new_workspace, new_workflow, new_version, new_execution, new_input, new_queue, 'CLAIMED', new_priority, now_ms,
            now_ms, new_digest, 1, most_attempts, by_holder, 1, now_ms + lease_ms, now_ms, false)
    ON CONFLICT (item_id) DO NOTHING;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE {schema}.workspaces AS w SET passed = base + share, last_tag = base WHERE w.workspace_id = new_workspace;
    RETURN QUERY SELECT 1::bigint, 1::bigint, now_ms + lease_ms, now_ms;
END
$$;

-- The same as before, and shorter where there is nothing to choose: if all that waits is one lane, its queue is none that was set up, and
-- its tier has no rate. That is what a system with one workspace comes to, and one in which a single workspace is busy. An item whose
-- time was moved since it was chosen is left.
-- args: holder, lease, how many at most, queues and workflows (empty: all), how far the clock is ahead. returns: the items, in order
CREATE OR REPLACE FUNCTION {schema}.claim_items(
    by_holder text, lease_ms bigint, most bigint, of_queues text[], of_workflows text[], ahead_ms bigint
) RETURNS TABLE (item_id text, workspace_id text, workflow_id text, version bigint, execution_id text, input bytea, fence bigint,
                 attempts bigint, until_ms bigint, queue text, enqueued_ms bigint)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + ahead_ms;
    turn double precision;
    lane_workspaces text[];
    lane_queues text[];
    lane_workflows text[];
    shut text[];
    locked text[];
    limited text[];
    allowances bigint[];
    contenders text[];
    bases double precision[];
    weights double precision[];
    shares bigint[];
    closed text[];
    kept bigint[] := '{{}}';
    chunk bigint;
    chosen bigint[];
    chosen_workspaces text[];
    chosen_queues text[];
    is_cut boolean;
    burst text;
    burst_at bigint;
    base double precision;
    weight double precision;
    slots bigint;
    has_rate boolean;
    started bigint;
BEGIN
    UPDATE {schema}.items AS i SET is_ready = true
    WHERE i.status = 'PENDING' AND NOT i.is_ready AND i.number = ANY (ARRAY(
        SELECT d.number FROM {schema}.items AS d
        WHERE d.status = 'PENDING' AND NOT d.is_ready AND d.run_at_ms <= now_ms
        ORDER BY d.run_at_ms LIMIT 10000 FOR NO KEY UPDATE SKIP LOCKED));

    -- A workspace whose items all stand in queues that are paused or full has no turn: it would take the place of one that can start.
    shut := ARRAY(
        SELECT q.name FROM {schema}.queues AS q
        WHERE q.is_paused OR {schema}.rate_allowance(q.rate_per_second, q.rate_ms, now_ms) <= 0
           OR CASE WHEN q.concurrency IS NOT NULL THEN q.concurrency <= (
                  SELECT count(*) FROM {schema}.items AS i WHERE i.queue = q.name AND i.status IN ('CLAIMED', 'DISPATCHED')) END);
    -- From the newest item of each lane to that of the one before: at their other end the entries of items that were claimed stay until
    -- the next vacuum, and whoever looks for the oldest one passes over all of them.
    WITH RECURSIVE lanes (workspace_id, queue, workflow_id) AS (
        (SELECT i.workspace_id, i.queue, i.workflow_id FROM {schema}.items AS i
         WHERE i.status = 'PENDING' AND i.is_ready
         ORDER BY i.workspace_id DESC, i.queue DESC, i.workflow_id DESC, i.priority, i.number DESC LIMIT 1)
        UNION ALL
        SELECT n.* FROM lanes AS l CROSS JOIN LATERAL (
            SELECT i.workspace_id, i.queue, i.workflow_id FROM {schema}.items AS i
            WHERE i.status = 'PENDING' AND i.is_ready
              AND (i.workspace_id, i.queue, i.workflow_id) < (l.workspace_id, l.queue, l.workflow_id)
            ORDER BY i.workspace_id DESC, i.queue DESC, i.workflow_id DESC, i.priority, i.number DESC LIMIT 1) AS n
    )
    SELECT array_agg(l.workspace_id), array_agg(l.queue), array_agg(l.workflow_id)
    INTO lane_workspaces, lane_queues, lane_workflows
    FROM lanes AS l
    WHERE (cardinality(of_queues) = 0 OR l.queue = ANY (of_queues))
      AND (cardinality(of_workflows) = 0 OR l.workflow_id = ANY (of_workflows))
      AND NOT l.queue = ANY (shut);
    IF lane_workspaces IS NULL OR most <= 0 THEN
        RETURN;
    END IF;
    turn := (SELECT max(w.last_tag) FROM {schema}.workspaces AS w);

    IF cardinality(lane_workspaces) = 1 AND NOT EXISTS (SELECT 1 FROM {schema}.queues AS q WHERE q.name = lane_queues[1]) THEN
        SELECT greatest(w.passed, turn), t.weight, t.concurrency, t.rate_per_second IS NOT NULL
        INTO base, weight, slots, has_rate
        FROM {schema}.workspaces AS w JOIN {schema}.tiers AS t ON t.name = w.tier
        WHERE w.workspace_id = lane_workspaces[1] AND NOT w.is_paused
        FOR NO KEY UPDATE OF w SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        IF NOT has_rate THEN
            slots := least(most, CASE WHEN slots IS NOT NULL THEN slots - (
                SELECT count(*) FROM {schema}.items AS i
                WHERE i.workspace_id = lane_workspaces[1] AND i.status IN ('CLAIMED', 'DISPATCHED')) END);
            IF slots <= 0 THEN
                RETURN;
            END IF;
            RETURN QUERY
            WITH claimed AS (
                UPDATE {schema}.items AS i
                SET status = 'CLAIMED', is_ready = false, holder = by_holder, fence = i.fence + 1, attempts = i.attempts + 1,
                    lease_until_ms = now_ms + lease_ms, claimed_ms = now_ms
                WHERE i.number = ANY (ARRAY(
                          SELECT c.number FROM {schema}.items AS c
                          WHERE c.status = 'PENDING' AND c.is_ready AND c.workspace_id = lane_workspaces[1]
                            AND c.queue = lane_queues[1] AND c.workflow_id = lane_workflows[1]
                          ORDER BY c.priority DESC, c.number LIMIT slots))
                  AND i.status = 'PENDING' AND i.is_ready
                RETURNING i.*
            )
            SELECT c.item_id, c.workspace_id, c.workflow_id, c.version, c.execution_id, c.input, c.fence, c.attempts, c.lease_until_ms,
                   c.queue, c.enqueued_ms
            FROM claimed AS c ORDER BY c.priority DESC, c.number;
            GET DIAGNOSTICS started = ROW_COUNT;
            IF started > 0 THEN
                UPDATE {schema}.workspaces AS w SET passed = base + started / weight, last_tag = base + (started - 1) / weight
                WHERE w.workspace_id = lane_workspaces[1];
            END IF;
            RETURN;
        END IF;
    END IF;

    -- The fairest, of equals the one whose first item came first; and if not all can have a turn, those that seem to have a slot. It is
    -- counted again once they are locked.
    SELECT array_agg(f.workspace_id) INTO locked
    FROM (
        SELECT w.workspace_id
        FROM (SELECT l.workspace_id, (array_agg(i.number ORDER BY i.priority DESC, i.number))[1] AS number
              FROM unnest(lane_workspaces, lane_queues, lane_workflows) AS l (workspace_id, queue, workflow_id)
              CROSS JOIN LATERAL (
                  SELECT f.priority, f.number FROM {schema}.items AS f
                  WHERE f.status = 'PENDING' AND f.is_ready
                    AND f.workspace_id = l.workspace_id AND f.queue = l.queue AND f.workflow_id = l.workflow_id
                  ORDER BY f.priority DESC, f.number LIMIT 1) AS i
              GROUP BY l.workspace_id) AS g
        JOIN {schema}.workspaces AS w ON w.workspace_id = g.workspace_id JOIN {schema}.tiers AS t ON t.name = w.tier
        WHERE NOT w.is_paused AND {schema}.rate_allowance(t.rate_per_second, w.rate_ms, now_ms) > 0
          AND (cardinality(lane_workspaces) <= most OR t.concurrency IS NULL OR t.concurrency > (
              SELECT count(*) FROM {schema}.items AS i
              WHERE i.workspace_id = w.workspace_id AND i.status IN ('CLAIMED', 'DISPATCHED')))
        ORDER BY greatest(w.passed, turn), g.number LIMIT most
        FOR NO KEY UPDATE OF w SKIP LOCKED) AS f;
    IF locked IS NULL THEN
        RETURN;
    END IF;

    SELECT coalesce(array_agg(f.name), '{{}}') INTO limited
    FROM (SELECT q.name FROM {schema}.queues AS q
          WHERE q.name = ANY (lane_queues) AND NOT q.is_paused AND (q.concurrency IS NOT NULL OR q.rate_per_second IS NOT NULL)
          FOR NO KEY UPDATE SKIP LOCKED) AS f;
    SELECT coalesce(array_agg(q.name), '{{}}') INTO closed
    FROM {schema}.queues AS q
    WHERE q.name = ANY (lane_queues) AND NOT q.name = ANY (limited)
      AND (q.is_paused OR q.concurrency IS NOT NULL OR q.rate_per_second IS NOT NULL);
    IF limited <> '{{}}' THEN
        SELECT coalesce(array_agg(q.name), '{{}}'), array_agg(least(
                   {schema}.rate_allowance(q.rate_per_second, q.rate_ms, now_ms),
                   CASE WHEN q.concurrency IS NOT NULL THEN greatest(q.concurrency - (
                       SELECT count(*) FROM {schema}.items AS i
                       WHERE i.queue = q.name AND i.status IN ('CLAIMED', 'DISPATCHED')), 0) END))
        INTO limited, allowances
        FROM {schema}.queues AS q WHERE q.name = ANY (limited);
    END IF;

    SELECT array_agg(w.workspace_id), array_agg(greatest(w.passed, turn)), array_agg(t.weight), array_agg(least(
               most, {schema}.rate_allowance(t.rate_per_second, w.rate_ms, now_ms),
               CASE WHEN t.concurrency IS NOT NULL THEN greatest(t.concurrency - (
                   SELECT count(*) FROM {schema}.items AS i
                   WHERE i.workspace_id = w.workspace_id AND i.status IN ('CLAIMED', 'DISPATCHED')), 0) END))
    INTO contenders, bases, weights, shares
    FROM {schema}.workspaces AS w JOIN {schema}.tiers AS t ON t.name = w.tier
    WHERE w.workspace_id = ANY (locked) AND NOT w.is_paused;

    chunk := least(most, most / cardinality(lane_workspaces) + 2);
    LOOP
        WITH candidates AS (
            SELECT l.lane, s.workspace_id, l.queue, c.number, s.share,
                   row_number() OVER (PARTITION BY s.workspace_id ORDER BY c.priority DESC, c.number) AS place,
                   s.base, s.weight
            FROM unnest(lane_workspaces, lane_queues, lane_workflows) WITH ORDINALITY AS l (workspace_id, queue, workflow_id, lane)
            JOIN unnest(contenders, bases, weights, shares) AS s (workspace_id, base, weight, share) ON s.workspace_id = l.workspace_id
            CROSS JOIN LATERAL (
                SELECT i.number, i.priority FROM {schema}.items AS i
                WHERE i.status = 'PENDING' AND i.is_ready
                  AND i.workspace_id = l.workspace_id AND i.queue = l.queue AND i.workflow_id = l.workflow_id
                ORDER BY i.priority DESC, i.number LIMIT least(chunk, s.share)) AS c
            WHERE NOT l.queue = ANY (closed) OR c.number = ANY (kept)
        ), taken AS (
            SELECT c.*, c.base + (c.place - 1) / c.weight AS tag FROM candidates AS c WHERE c.place <= c.share
            ORDER BY tag, c.number LIMIT most
        )
        SELECT array_agg(t.number ORDER BY t.tag, t.number), array_agg(t.workspace_id ORDER BY t.tag, t.number),
               array_agg(t.queue ORDER BY t.tag, t.number),
               chunk < most AND EXISTS (SELECT 1 FROM taken AS e GROUP BY e.lane HAVING count(*) >= chunk)
        INTO chosen, chosen_workspaces, chosen_queues, is_cut
        FROM taken AS t;
        IF chosen IS NULL THEN
            RETURN;
        END IF;
        IF is_cut THEN  -- all that was looked at of some lane was taken: there may be more of it
            chunk := least(most, 4 * chunk);
            CONTINUE;
        END IF;
        EXIT WHEN limited = '{{}}';
        -- The first queue that is full by what was chosen is closed behind that, and all is chosen again: those whose next item stands
        -- in it have another one then.
        SELECT q.queue, q.allowed INTO burst, burst_at
        FROM (
            SELECT c.queue, a.allowed, c.place, row_number() OVER (PARTITION BY c.queue ORDER BY c.place) AS count
            FROM unnest(chosen_queues) WITH ORDINALITY AS c (queue, place)
            JOIN unnest(limited, allowances) AS a (queue, allowed) ON a.queue = c.queue
            WHERE NOT c.queue = ANY (closed)) AS q
        WHERE q.count >= greatest(q.allowed, 1) ORDER BY q.place LIMIT 1;
        EXIT WHEN NOT FOUND;
        kept := kept || ARRAY(
            SELECT c.number FROM unnest(chosen, chosen_queues) WITH ORDINALITY AS c (number, queue, place)
            WHERE c.queue = burst ORDER BY c.place LIMIT burst_at);
        closed := closed || burst;
    END LOOP;

    UPDATE {schema}.workspaces AS w
    SET passed = g.base + g.count / g.weight, last_tag = g.base + (g.count - 1) / g.weight,
        rate_ms = CASE WHEN t.rate_per_second > 0 THEN greatest(w.rate_ms, now_ms) + g.count * 1000 / t.rate_per_second
                       ELSE w.rate_ms END
    FROM (SELECT s.workspace_id, s.base, s.weight, count(*) AS count
          FROM unnest(chosen_workspaces) AS c (workspace_id)
          JOIN unnest(contenders, bases, weights) AS s (workspace_id, base, weight) ON s.workspace_id = c.workspace_id
          GROUP BY s.workspace_id, s.base, s.weight) AS g, {schema}.tiers AS t
    WHERE w.workspace_id = g.workspace_id AND t.name = w.tier;
    UPDATE {schema}.queues AS q SET rate_ms = greatest(q.rate_ms, now_ms) + g.count * 1000 / q.rate_per_second
    FROM (SELECT c.queue, count(*) AS count FROM unnest(chosen_queues) AS c (queue) GROUP BY c.queue) AS g
    WHERE q.name = g.queue AND q.rate_per_second > 0;

    RETURN QUERY
    WITH claimed AS (
        UPDATE {schema}.items AS i
        SET status = 'CLAIMED', is_ready = false, holder = by_holder, fence = i.fence + 1, attempts = i.attempts + 1,
            lease_until_ms = now_ms + lease_ms, claimed_ms = now_ms
        WHERE i.number = ANY (chosen) AND i.status = 'PENDING' AND i.is_ready
        RETURNING i.*
    )
    SELECT c.item_id, c.workspace_id, c.workflow_id, c.version, c.execution_id, c.input, c.fence, c.attempts, c.lease_until_ms, c.queue,
           c.enqueued_ms
    FROM claimed AS c JOIN unnest(chosen) WITH ORDINALITY AS p (number, place) ON p.number = c.number ORDER BY p.place;
END
$$;
