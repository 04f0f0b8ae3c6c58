-- The initial schema: executions with their commits and snapshots, scoped state, locks, the queue, and row-level security.
--
-- Ids and keys are compared by their bytes (COLLATE "C"). Values are bytea, so that the server never changes their bytes.
-- Every statement ends with a semicolon at the end of a line: the migration runner splits the file there.

-- fillfactor 70 leaves room on each page for HOT updates: moving a head then touches no index.
CREATE TABLE {schema}.executions (
    number         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- commits refer to it: short, and new rows share pages
    execution_id   text COLLATE "C" NOT NULL UNIQUE,
    workspace_id   text COLLATE "C" NOT NULL,
    workflow_id    text COLLATE "C" NOT NULL,
    version        bigint NOT NULL,
    parent_id      text COLLATE "C",
    status         text COLLATE "C" NOT NULL,
    revision       bigint NOT NULL,
    digest         text COLLATE "C" NOT NULL,    -- of the newest receipt in the chain
    signature      bytea,
    fence          bigint NOT NULL DEFAULT 0,
    holder         text COLLATE "C",
    lease_until_ms bigint,
    wake_ms        bigint,                       -- when a worker should claim it; NULL: never
    is_nudged      boolean NOT NULL DEFAULT false,  -- it was nudged while leased; becomes due when the lease is released
    claims         bigint NOT NULL DEFAULT 0,    -- since its last commit; counts workers that died with it
    base_revision  bigint NOT NULL DEFAULT -1,   -- the stored chain starts after this revision
    created_ms     bigint NOT NULL,
    updated_ms     bigint NOT NULL,
    deleted_ms     bigint                        -- tombstone: the id is never used again
) WITH (fillfactor = 70);

CREATE INDEX executions_by_age ON {schema}.executions (created_ms, execution_id) WHERE deleted_ms IS NULL;
CREATE INDEX executions_by_workspace ON {schema}.executions (workspace_id, created_ms, execution_id) WHERE deleted_ms IS NULL;
CREATE INDEX executions_by_status ON {schema}.executions (status, created_ms, execution_id) WHERE deleted_ms IS NULL;
CREATE INDEX executions_by_wake ON {schema}.executions (wake_ms, number) WHERE wake_ms IS NOT NULL;

CREATE TABLE {schema}.commits (
    number    bigint NOT NULL,
    revision  bigint NOT NULL,
    commit_id text COLLATE "C" NOT NULL,
    is_named  boolean NOT NULL,                  -- the user chose the id; a generated id contains its revision and needs no index
    header    bytea NOT NULL,
    body      bytea NOT NULL,
    PRIMARY KEY (number, revision)
);
CREATE UNIQUE INDEX commits_by_name ON {schema}.commits (number, commit_id) WHERE is_named;

CREATE TABLE {schema}.snapshots (
    number      bigint NOT NULL,
    revision    bigint NOT NULL,
    data        bytea NOT NULL,
    accumulator bytea NOT NULL,
    digest      text COLLATE "C" NOT NULL,
    PRIMARY KEY (number, revision)
);

-- A path can be longer than an index entry, so the key is its SHA-256.
CREATE TABLE {schema}.state_scopes (
    number       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    address      bytea NOT NULL UNIQUE,
    path         text COLLATE "C" NOT NULL,
    workspace_id text COLLATE "C" NOT NULL,
    revision     bigint NOT NULL,
    keys         bigint NOT NULL,
    bytes        bigint NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE {schema}.state_entries (
    number     bigint NOT NULL,                  -- the scope's
    key        text COLLATE "C" NOT NULL,
    data       bytea,                            -- NULL: a tombstone, written at expires_ms
    revision   bigint NOT NULL,
    expires_ms bigint,
    ttl_ms     bigint,
    sliding    boolean NOT NULL,
    PRIMARY KEY (number, key)
);
CREATE INDEX state_entries_by_revision ON {schema}.state_entries (number, revision);
CREATE INDEX state_entries_by_end ON {schema}.state_entries (expires_ms) WHERE expires_ms IS NOT NULL;

-- Bytes and keys of scoped state per workspace, and per workflow in it, only where a tier limits them: counted by the first write that
-- needs the numbers, then updated under a row lock. The others have no row, so their writers never wait for each other here. The counts
-- are deleted whenever a tier or a workspace is changed, and by every sweep; this corrects a count that missed a write made without a
-- limit.
CREATE TABLE {schema}.state_counts (
    workspace_id text COLLATE "C" NOT NULL,
    workflow_id  text COLLATE "C" NOT NULL,      -- '': all state of the workspace
    bytes        bigint NOT NULL,
    keys         bigint NOT NULL,
    PRIMARY KEY (workspace_id, workflow_id)
);

CREATE INDEX state_scopes_by_workspace ON {schema}.state_scopes (workspace_id);

CREATE TABLE {schema}.locks (
    address     bytea PRIMARY KEY,               -- SHA-256 of the name
    name        text COLLATE "C" NOT NULL,
    holder      text COLLATE "C" NOT NULL,
    fence       bigint NOT NULL,
    acquired_ms bigint NOT NULL,
    until_ms    bigint NOT NULL
) WITH (fillfactor = 70);

-- Fencing tokens must only grow, even after a rollback or a deleted lock: a sequence is never rolled back.
CREATE SEQUENCE {schema}.fences;

CREATE TABLE {schema}.tiers (
    name              text COLLATE "C" PRIMARY KEY,
    concurrency       bigint,                    -- NULL in a limit: unlimited
    weight            double precision NOT NULL,
    rate_per_second   double precision,
    queue_depth       bigint,
    state_bytes       bigint,
    retention_seconds double precision,
    child_concurrency bigint,
    quotas            jsonb                      -- the limits without a column, by limit; NULL: none
);

INSERT INTO {schema}.tiers (name, concurrency, weight, rate_per_second, queue_depth, state_bytes, retention_seconds, child_concurrency)
VALUES
    ('free', 1, 1, NULL, 1000, NULL, 604800, 100),
    ('startup', 3, 3, NULL, 10000, NULL, 604800, 100),
    ('scale', 5, 5, NULL, 100000, NULL, 604800, 100),
    ('enterprise', 10, 10, NULL, NULL, NULL, 604800, 100),
    ('unlimited', NULL, 1, NULL, NULL, NULL, 604800, NULL);

CREATE TABLE {schema}.workspaces (
    workspace_id text COLLATE "C" PRIMARY KEY,
    tier         text COLLATE "C" NOT NULL,
    is_paused    boolean NOT NULL DEFAULT false,
    created_ms   bigint NOT NULL,
    overrides    jsonb,                                -- by limit: value, until_ms and more; NULL: none
    passed       double precision NOT NULL DEFAULT 0,  -- stride scheduling: the tag of the next item that it starts
    last_tag     double precision NOT NULL DEFAULT 0,  -- tag of the item that it started last; the maximum over all is the virtual time
    rate_ms      double precision NOT NULL DEFAULT 0   -- earliest time of its next start by the tier's rate
) WITH (fillfactor = 70);

-- One limit of a workspace now: that of its tier, unless the workspace overrides it until a later time.
CREATE FUNCTION {schema}.limit_of(overrides jsonb, name text, of_tier double precision, now_ms bigint) RETURNS double precision
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN (overrides -> name ->> 'until_ms')::bigint > now_ms THEN (overrides -> name ->> 'value')::double precision
                ELSE of_tier END
$$;

-- The virtual time is read from this index, so that claims for different workspaces update no common row.
CREATE INDEX workspaces_by_tag ON {schema}.workspaces (last_tag);

INSERT INTO {schema}.workspaces (workspace_id, tier, created_ms) VALUES ('default', 'unlimited', 0);

CREATE TABLE {schema}.queues (
    name            text COLLATE "C" PRIMARY KEY,
    is_paused       boolean NOT NULL,
    concurrency     bigint,
    rate_per_second double precision,
    rate_ms         double precision NOT NULL DEFAULT 0
);

CREATE TABLE {schema}.items (
    number         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- order of arrival: first in, first out
    item_id        text COLLATE "C" NOT NULL UNIQUE,
    workspace_id   text COLLATE "C" NOT NULL,
    workflow_id    text COLLATE "C" NOT NULL,
    version        bigint NOT NULL,
    execution_id   text COLLATE "C" NOT NULL,
    input          bytea NOT NULL,
    queue          text COLLATE "C" NOT NULL,
    status         text COLLATE "C" NOT NULL,
    priority       bigint NOT NULL,
    enqueued_ms    bigint NOT NULL,
    run_at_ms      bigint NOT NULL,
    key            text COLLATE "C",
    body_digest    text COLLATE "C" NOT NULL,
    singleton      text COLLATE "C",
    debounce       text COLLATE "C",
    attempts       bigint NOT NULL DEFAULT 0,
    max_attempts   bigint NOT NULL,
    holder         text COLLATE "C",
    fence          bigint NOT NULL DEFAULT 0,
    lease_until_ms bigint,
    claimed_ms     bigint,
    dispatched_ms  bigint,
    finished_ms    bigint,
    error          text COLLATE "C",
    is_ready       boolean NOT NULL              -- a QUEUED item whose run_at_ms has passed; claims update it
);

-- Partial indexes, so that each holds only the rows that one query of a claim looks for, from its first entry on. Listing one
-- workspace, or the dead letters, has an index of its own, so that its time does not depend on the number of other items.
CREATE INDEX items_ready ON {schema}.items (workspace_id, queue, workflow_id, priority DESC, number) WHERE status = 'QUEUED' AND is_ready;
CREATE INDEX items_delayed ON {schema}.items (run_at_ms) WHERE status = 'QUEUED' AND NOT is_ready;
CREATE INDEX items_delayed_by_workspace ON {schema}.items (workspace_id) WHERE status = 'QUEUED' AND NOT is_ready;
CREATE INDEX items_active ON {schema}.items (workspace_id) WHERE status IN ('CLAIMED', 'DISPATCHED');
CREATE INDEX items_active_in_queue ON {schema}.items (queue) WHERE status IN ('CLAIMED', 'DISPATCHED');
CREATE INDEX items_leased ON {schema}.items (lease_until_ms, number) WHERE status = 'CLAIMED';
CREATE INDEX items_ended ON {schema}.items (workspace_id, queue, finished_ms) WHERE finished_ms IS NOT NULL;
CREATE INDEX items_by_workspace ON {schema}.items (workspace_id, number);
CREATE INDEX items_dead ON {schema}.items (number) WHERE status IN ('FAILED', 'CANCELLED');
-- Used when an execution is deleted. DISPATCHED only, so that a run that is a single commit never enters this index.
CREATE INDEX items_by_execution ON {schema}.items (execution_id) WHERE status = 'DISPATCHED';
CREATE UNIQUE INDEX items_by_key ON {schema}.items (workspace_id, key) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX items_by_singleton ON {schema}.items (workspace_id, singleton) WHERE singleton IS NOT NULL AND finished_ms IS NULL;
CREATE INDEX items_by_debounce ON {schema}.items (workspace_id, debounce, number) WHERE debounce IS NOT NULL AND status = 'QUEUED';

-- Adds items by the rules of stepwell.model.queue_lifecycle. If a request has a key, singleton or debounce name, or its workspace has a
-- queue depth, the function holds an advisory lock per workspace, so that one transaction at a time decides about that workspace's
-- requests. Claims do not take this lock.
-- args: one array per column; whether no request has a name; clock offset; the notification channel
-- returns: no rows if every item is new; else one row per request, with its position from 1, the item, or the reason of its refusal
CREATE FUNCTION {schema}.enqueue(
    item_ids text[], workspace_ids text[], workflow_ids text[], versions bigint[], execution_ids text[], inputs bytea[], names text[],
    priorities bigint[], delays bigint[], run_ats bigint[], keys text[], digests text[], singletons text[], debounces text[],
    most_attempts bigint[], are_plain boolean, ahead_ms bigint, channel text
) RETURNS TABLE (place bigint, item_id text, execution_id text, status text, is_new boolean, refusal text)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + ahead_ms;
    added bigint;
    rooms jsonb := '{{}}';
    room bigint;
    depth bigint;
    item {schema}.items%ROWTYPE;
    at bigint;
BEGIN
    IF are_plain AND NOT EXISTS (
        SELECT 1 FROM (SELECT DISTINCT unnest(workspace_ids) AS workspace_id) AS g
        LEFT JOIN {schema}.workspaces AS w USING (workspace_id) LEFT JOIN {schema}.tiers AS t ON t.name = w.tier
        WHERE t.name IS NULL OR {schema}.limit_of(w.overrides, 'queue_depth', t.queue_depth, now_ms) IS NOT NULL
    ) THEN
        INSERT INTO {schema}.items (item_id, workspace_id, workflow_id, version, execution_id, input, queue, status, priority,
                                    enqueued_ms, run_at_ms, body_digest, max_attempts, is_ready)
        SELECT g.item_id, g.workspace_id, g.workflow_id, g.version, g.execution_id, g.input, g.queue, 'QUEUED', g.priority, now_ms,
               coalesce(g.run_at, now_ms + g.delay), g.digest, g.most, coalesce(g.run_at, now_ms + g.delay) <= now_ms
        FROM unnest(item_ids, workspace_ids, workflow_ids, versions, execution_ids, inputs, names, priorities, delays, run_ats, digests,
                    most_attempts) WITH ORDINALITY
             AS g (item_id, workspace_id, workflow_id, version, execution_id, input, queue, priority, delay, run_at, digest, most, place)
        ORDER BY g.place
        ON CONFLICT (item_id) DO NOTHING;
        GET DIAGNOSTICS added = ROW_COUNT;
        IF added > 0 THEN
            PERFORM pg_notify(channel, 'queue');
        END IF;
        IF added < cardinality(item_ids) THEN
            RETURN QUERY
            SELECT g.place, i.item_id, i.execution_id, i.status,
                   i.xmin = pg_current_xact_id()::xid AND g.place = min(g.place) OVER (PARTITION BY g.item_id),
                   CASE WHEN i.workspace_id = g.workspace_id AND i.body_digest = g.digest THEN NULL ELSE 'conflict' END
            FROM unnest(item_ids, workspace_ids, digests) WITH ORDINALITY AS g (item_id, workspace_id, digest, place)
            JOIN {schema}.items AS i ON i.item_id = g.item_id;
        END IF;
        RETURN;
    END IF;

    PERFORM pg_advisory_xact_lock(hashtextextended(workspace_id, 5377))
    FROM (SELECT DISTINCT workspace_id FROM unnest(workspace_ids) AS g (workspace_id) ORDER BY 1) AS desks;
    FOR at IN 1 .. cardinality(item_ids) LOOP
        place := at; item_id := NULL; execution_id := NULL; status := NULL; is_new := false; refusal := NULL;
        SELECT {schema}.limit_of(w.overrides, 'queue_depth', t.queue_depth, now_ms)::bigint INTO depth FROM {schema}.workspaces AS w JOIN {schema}.tiers AS t ON t.name = w.tier
        WHERE w.workspace_id = workspace_ids[at];
        IF NOT FOUND THEN
            refusal := 'workspace';
            RETURN NEXT;
            CONTINUE;
        END IF;
        SELECT i.* INTO item FROM {schema}.items AS i WHERE i.item_id = item_ids[at];
        IF item.number IS NULL AND keys[at] IS NOT NULL THEN
            SELECT i.* INTO item FROM {schema}.items AS i WHERE i.workspace_id = workspace_ids[at] AND i.key = keys[at];
        END IF;
        IF item.number IS NOT NULL AND (item.workspace_id <> workspace_ids[at] OR item.body_digest <> digests[at]) THEN
            item_id := item.item_id;
            refusal := 'conflict';
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF item.number IS NULL AND singletons[at] IS NOT NULL THEN
            SELECT i.* INTO item FROM {schema}.items AS i
            WHERE i.workspace_id = workspace_ids[at] AND i.singleton = singletons[at] AND i.finished_ms IS NULL;
        END IF;
        IF item.number IS NULL AND debounces[at] IS NOT NULL THEN
            UPDATE {schema}.items AS i
            SET workflow_id = workflow_ids[at], version = versions[at], input = inputs[at],
                run_at_ms = coalesce(run_ats[at], now_ms + delays[at]), is_ready = coalesce(run_ats[at], now_ms + delays[at]) <= now_ms
            WHERE i.status = 'QUEUED' AND i.number = (
                SELECT b.number FROM {schema}.items AS b
                WHERE b.workspace_id = workspace_ids[at] AND b.debounce = debounces[at] AND b.status = 'QUEUED'
                ORDER BY b.number DESC LIMIT 1)
            RETURNING i.* INTO item;
        END IF;
        IF item.number IS NOT NULL THEN
            item_id := item.item_id; execution_id := item.execution_id; status := item.status;
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF depth IS NOT NULL THEN
            room := (rooms ->> workspace_ids[at])::bigint;
            IF room IS NULL THEN
                room := depth - (SELECT count(*) FROM (
                    SELECT 1 FROM {schema}.items AS i
                    WHERE i.workspace_id = workspace_ids[at] AND i.status = 'QUEUED' AND i.is_ready LIMIT depth) AS ready)
                  - (SELECT count(*) FROM (
                    SELECT 1 FROM {schema}.items AS i
                    WHERE i.workspace_id = workspace_ids[at] AND i.status = 'QUEUED' AND NOT i.is_ready LIMIT depth) AS delayed);
            END IF;
            rooms := rooms || jsonb_build_object(workspace_ids[at], room - 1);
            IF room <= 0 THEN
                refusal := 'full';
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;
        INSERT INTO {schema}.items (item_id, workspace_id, workflow_id, version, execution_id, input, queue, status, priority,
                                    enqueued_ms, run_at_ms, key, body_digest, singleton, debounce, max_attempts, is_ready)
        VALUES (item_ids[at], workspace_ids[at], workflow_ids[at], versions[at], execution_ids[at], inputs[at], names[at], 'QUEUED',
                priorities[at], now_ms, coalesce(run_ats[at], now_ms + delays[at]), keys[at], digests[at], singletons[at],
                debounces[at], most_attempts[at], coalesce(run_ats[at], now_ms + delays[at]) <= now_ms);
        item_id := item_ids[at]; execution_id := execution_ids[at]; status := 'QUEUED'; is_new := true;
        RETURN NEXT;
    END LOOP;
    PERFORM pg_notify(channel, 'queue');
END
$$;

-- How many items a rate allows to start now: the same rule as stepwell.model.queue_fairness.rate_allowance, explained there.
CREATE FUNCTION {schema}.rate_allowance(rate double precision, rate_ms double precision, now_ms bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN rate IS NULL THEN 9007199254740992 WHEN rate <= 0 THEN 0
                ELSE greatest(floor((now_ms + greatest(1000 - 1000 / rate, 0) - greatest(rate_ms, now_ms)) / (1000 / rate) + 0.001) + 1, 0)::bigint END
$$;

-- Claims items by the rules of stepwell.model.queue_fairness.
--
-- Concurrency caps hold at every instant: a workspace's row is locked before its active items are counted, and the count is a later
-- statement, so that its snapshot is newer than the lock. Named queues with limits are locked the same way. Rows locked by another
-- claim are skipped, never waited for.
--
-- Time does not depend on the number of waiting items: each statement reads at most as many index entries as there are lanes
-- (workspace, queue, workflow) or items to take, whatever the planner's statistics say. Therefore items are selected by an array, never
-- joined with one, and a lane is read in index order, never sorted.
--
-- If everything that waits is one lane without a named queue or a rate, there is nothing to choose, and a shorter branch runs.
-- args: holder, lease in ms, limit, queues and workflows (empty: all), clock offset. returns: the claimed items, in order
CREATE FUNCTION {schema}.claim_items(
    by_holder text, lease_ms bigint, most bigint, of_queues text[], of_workflows text[], ahead_ms bigint
) RETURNS TABLE (item_id text, workspace_id text, workflow_id text, version bigint, execution_id text, input bytea, fence bigint,
                 attempts bigint, until_ms bigint, queue text, enqueued_ms bigint)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + ahead_ms;
    virtual_time double precision;
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
    WHERE i.status = 'QUEUED' AND NOT i.is_ready AND i.number = ANY (ARRAY(
        SELECT d.number FROM {schema}.items AS d
        WHERE d.status = 'QUEUED' AND NOT d.is_ready AND d.run_at_ms <= now_ms
        ORDER BY d.run_at_ms LIMIT 10000 FOR NO KEY UPDATE SKIP LOCKED));

    -- Leave out paused and full queues before workspaces are chosen: a workspace with nothing else would be chosen for nothing.
    shut := ARRAY(
        SELECT q.name FROM {schema}.queues AS q
        WHERE q.is_paused OR {schema}.rate_allowance(q.rate_per_second, q.rate_ms, now_ms) <= 0
           OR CASE WHEN q.concurrency IS NOT NULL THEN q.concurrency <= (
                  SELECT count(*) FROM {schema}.items AS i WHERE i.queue = q.name AND i.status IN ('CLAIMED', 'DISPATCHED')) END);
    -- Skip from lane to lane by their newest items. Index entries of claimed items stay at the old end until the next vacuum, and a
    -- scan from there would pass over all of them (30,000 entries took 0.1 to 0.3 ms).
    WITH RECURSIVE lanes (workspace_id, queue, workflow_id) AS (
        (SELECT i.workspace_id, i.queue, i.workflow_id FROM {schema}.items AS i
         WHERE i.status = 'QUEUED' AND i.is_ready
         ORDER BY i.workspace_id DESC, i.queue DESC, i.workflow_id DESC, i.priority, i.number DESC LIMIT 1)
        UNION ALL
        SELECT n.* FROM lanes AS l CROSS JOIN LATERAL (
            SELECT i.workspace_id, i.queue, i.workflow_id FROM {schema}.items AS i
            WHERE i.status = 'QUEUED' AND i.is_ready
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
    virtual_time := (SELECT max(w.last_tag) FROM {schema}.workspaces AS w);

    IF cardinality(lane_workspaces) = 1 AND NOT EXISTS (SELECT 1 FROM {schema}.queues AS q WHERE q.name = lane_queues[1]) THEN
        SELECT greatest(w.passed, virtual_time), {schema}.limit_of(w.overrides, 'weight', t.weight, now_ms),
               {schema}.limit_of(w.overrides, 'concurrency', t.concurrency, now_ms)::bigint, {schema}.limit_of(w.overrides, 'rate_per_second', t.rate_per_second, now_ms) IS NOT NULL
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
                          WHERE c.status = 'QUEUED' AND c.is_ready AND c.workspace_id = lane_workspaces[1]
                            AND c.queue = lane_queues[1] AND c.workflow_id = lane_workflows[1]
                          ORDER BY c.priority DESC, c.number LIMIT slots))
                  AND i.status = 'QUEUED' AND i.is_ready
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

    -- Lock the workspaces with the smallest pass; of equal ones, the one whose first item is older. If there are more workspaces than
    -- items to take, only those that seem to have a free slot; the slots are counted again after locking.
    SELECT array_agg(f.workspace_id) INTO locked
    FROM (
        SELECT w.workspace_id
        FROM (SELECT l.workspace_id, (array_agg(i.number ORDER BY i.priority DESC, i.number))[1] AS number
              FROM unnest(lane_workspaces, lane_queues, lane_workflows) AS l (workspace_id, queue, workflow_id)
              CROSS JOIN LATERAL (
                  SELECT f.priority, f.number FROM {schema}.items AS f
                  WHERE f.status = 'QUEUED' AND f.is_ready
                    AND f.workspace_id = l.workspace_id AND f.queue = l.queue AND f.workflow_id = l.workflow_id
                  ORDER BY f.priority DESC, f.number LIMIT 1) AS i
              GROUP BY l.workspace_id) AS g
        JOIN {schema}.workspaces AS w ON w.workspace_id = g.workspace_id JOIN {schema}.tiers AS t ON t.name = w.tier
        WHERE NOT w.is_paused AND {schema}.rate_allowance({schema}.limit_of(w.overrides, 'rate_per_second', t.rate_per_second, now_ms), w.rate_ms, now_ms) > 0
          AND (cardinality(lane_workspaces) <= most OR coalesce({schema}.limit_of(w.overrides, 'concurrency', t.concurrency, now_ms), 'infinity') > (
              SELECT count(*) FROM {schema}.items AS i
              WHERE i.workspace_id = w.workspace_id AND i.status IN ('CLAIMED', 'DISPATCHED')))
        ORDER BY greatest(w.passed, virtual_time), g.number LIMIT most
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

    SELECT array_agg(w.workspace_id), array_agg(greatest(w.passed, virtual_time)), array_agg(w.weight), array_agg(least(
               most, {schema}.rate_allowance(w.rate, w.rate_ms, now_ms),
               CASE WHEN w.concurrency IS NOT NULL THEN greatest(w.concurrency - (
                   SELECT count(*) FROM {schema}.items AS i
                   WHERE i.workspace_id = w.workspace_id AND i.status IN ('CLAIMED', 'DISPATCHED')), 0) END))
    INTO contenders, bases, weights, shares
    FROM (SELECT w.workspace_id, w.passed, w.rate_ms,
                 {schema}.limit_of(w.overrides, 'weight', t.weight, now_ms) AS weight, {schema}.limit_of(w.overrides, 'rate_per_second', t.rate_per_second, now_ms) AS rate,
                 {schema}.limit_of(w.overrides, 'concurrency', t.concurrency, now_ms)::bigint AS concurrency
          FROM {schema}.workspaces AS w JOIN {schema}.tiers AS t ON t.name = w.tier
          WHERE w.workspace_id = ANY (locked) AND NOT w.is_paused) AS w;

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
                WHERE i.status = 'QUEUED' AND i.is_ready
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
        IF is_cut THEN  -- every candidate of some lane was chosen, so the lane may have more: look deeper
            chunk := least(most, 4 * chunk);
            CONTINUE;
        END IF;
        EXIT WHEN limited = '{{}}';
        -- Find the first queue whose limit is reached by the chosen items, close it after its last allowed item, and choose again:
        -- a workspace whose next item is in a closed queue then offers another one.
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
        rate_ms = coalesce(greatest(w.rate_ms, now_ms)
                           + g.count * 1000 / nullif({schema}.limit_of(w.overrides, 'rate_per_second', t.rate_per_second, now_ms), 0), w.rate_ms)
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
        WHERE i.number = ANY (chosen) AND i.status = 'QUEUED' AND i.is_ready
        RETURNING i.*
    )
    SELECT c.item_id, c.workspace_id, c.workflow_id, c.version, c.execution_id, c.input, c.fence, c.attempts, c.lease_until_ms, c.queue,
           c.enqueued_ms
    FROM claimed AS c JOIN unnest(chosen) WITH ORDINALITY AS p (number, place) ON p.number = c.number ORDER BY p.place;
END
$$;

-- Row-level security, a second line of defence: where it is enabled, a role that does not own the tables sees only the workspace
-- named in the setting stepwell.workspace.
CREATE POLICY workspace_only ON {schema}.executions
    USING (workspace_id = nullif(current_setting('stepwell.workspace', true), ''));
CREATE POLICY workspace_only ON {schema}.commits
    USING (EXISTS (SELECT 1 FROM {schema}.executions AS e WHERE e.number = commits.number));
CREATE POLICY workspace_only ON {schema}.snapshots
    USING (EXISTS (SELECT 1 FROM {schema}.executions AS e WHERE e.number = snapshots.number));
CREATE POLICY workspace_only ON {schema}.state_scopes
    USING (workspace_id = nullif(current_setting('stepwell.workspace', true), ''));
CREATE POLICY workspace_only ON {schema}.state_entries
    USING (EXISTS (SELECT 1 FROM {schema}.state_scopes AS s WHERE s.number = state_entries.number));
CREATE POLICY workspace_only ON {schema}.state_counts
    USING (workspace_id = nullif(current_setting('stepwell.workspace', true), ''));
CREATE POLICY workspace_only ON {schema}.items
    USING (workspace_id = nullif(current_setting('stepwell.workspace', true), ''));
CREATE POLICY workspace_only ON {schema}.workspaces
    USING (workspace_id = nullif(current_setting('stepwell.workspace', true), ''));
