-- Adds one item as the claim behind it would leave it, if that is plain to see: nothing else waits, its workspace may start one more by
-- everything that limits it, and nothing is said about its queue. If the claim only rides along, others may wait, but none of the same
-- workspace, which must not be ahead of its turn. Else does nothing, and the two are made one after the other. It is what most requests
-- to a system with room come to, and saves them a row that is written twice. Nobody is notified, since nobody else can start it. The
-- workspace is locked before its active items are counted, in a later statement, as in claim_items.
-- args: the item; holder, lease, queues and workflows of the claim (empty: all), whether it rides along; how far the clock is ahead
-- returns: a row if it was added and claimed
CREATE FUNCTION {schema}.enqueue_claimed(
    new_id text, new_workspace text, new_workflow text, new_version bigint, new_execution text, new_input bytea, new_queue text,
    new_priority bigint, new_digest text, most_attempts bigint, by_holder text, lease_ms bigint, of_queues text[], of_workflows text[],
    is_riding boolean, ahead_ms bigint
) RETURNS TABLE (fence bigint, attempts bigint, until_ms bigint, enqueued_ms bigint)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + ahead_ms;
    turn double precision := (SELECT max(w.last_tag) FROM {schema}.workspaces AS w);
    others_wait boolean := EXISTS (SELECT 1 FROM {schema}.items AS i WHERE i.status = 'PENDING' AND i.is_ready)
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
        EXISTS (SELECT 1 FROM {schema}.items AS i WHERE i.workspace_id = new_workspace AND i.status = 'PENDING' AND i.is_ready)
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
