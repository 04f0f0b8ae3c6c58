-- What a claim writes, as one statement; and fewer entries for an item to leave in indexes.

-- The item of an execution is asked for when the execution is deleted, and is DISPATCHED by then: the first commit makes it so. A run
-- that is a single commit leaves no entry here.
DROP INDEX items_by_execution;
CREATE INDEX items_by_execution ON items (execution_id) WHERE status = 'DISPATCHED';

-- One insert into this view is a claim: the items in a list of numbers are leased, each with a fence higher than before and its attempt
-- counted; the turn is set; and the passes and rates of workspaces, in a list of [workspace, pass, rate], and the rates of queues, in a
-- list of [queue, rate], are noted.
CREATE VIEW claims AS
SELECT '' AS numbers, '' AS holder, 0 AS until_ms, 0 AS now_ms, 0.0 AS turn, '' AS workspaces, '' AS queues;

CREATE TRIGGER write_claim INSTEAD OF INSERT ON claims
BEGIN
    UPDATE items SET status = 'CLAIMED', is_ready = 0, holder = new.holder, fence = fence + 1, attempts = attempts + 1,
                     lease_until_ms = new.until_ms, claimed_ms = new.now_ms
    WHERE number IN (SELECT value FROM json_each(new.numbers));
    UPDATE turns SET turn = new.turn WHERE turn <> new.turn;
    UPDATE workspaces SET passed = value ->> 1, rate_ms = value ->> 2 FROM jsonb_each(new.workspaces)
    WHERE workspace_id = value ->> 0;
    UPDATE queues SET rate_ms = value ->> 1 FROM jsonb_each(new.queues) WHERE name = value ->> 0;
END;
