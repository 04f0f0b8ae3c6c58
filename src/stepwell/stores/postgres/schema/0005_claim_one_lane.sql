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
    lane_priorities bigint[];
    lane_firsts bigint[];
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
    WITH RECURSIVE lanes (workspace_id, queue, workflow_id, priority, number) AS (
        (SELECT i.workspace_id, i.queue, i.workflow_id, i.priority, i.number FROM {schema}.items AS i
         WHERE i.status = 'PENDING' AND i.is_ready
         ORDER BY i.workspace_id, i.queue, i.workflow_id, i.priority DESC, i.number LIMIT 1)
        UNION ALL
        SELECT n.* FROM lanes AS l CROSS JOIN LATERAL (
            SELECT i.workspace_id, i.queue, i.workflow_id, i.priority, i.number FROM {schema}.items AS i
            WHERE i.status = 'PENDING' AND i.is_ready
              AND (i.workspace_id, i.queue, i.workflow_id) > (l.workspace_id, l.queue, l.workflow_id)
            ORDER BY i.workspace_id, i.queue, i.workflow_id, i.priority DESC, i.number LIMIT 1) AS n
    )
    SELECT array_agg(l.workspace_id), array_agg(l.queue), array_agg(l.workflow_id), array_agg(l.priority::bigint), array_agg(l.number)
    INTO lane_workspaces, lane_queues, lane_workflows, lane_priorities, lane_firsts
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
        FROM (SELECT l.workspace_id, (array_agg(l.number ORDER BY l.priority DESC, l.number))[1] AS number
              FROM unnest(lane_workspaces, lane_priorities, lane_firsts) AS l (workspace_id, priority, number)
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
