-- Fewer entries for an item to leave in indexes, since every change of its row is one more in each that has it.
-- The item of an execution is asked for when the execution is deleted, and is DISPATCHED by then: their first commit makes it so. A run
-- that is a single commit leaves no entry here.
DROP INDEX {schema}.items_by_execution;
CREATE INDEX items_by_execution ON {schema}.items (execution_id) WHERE status = 'DISPATCHED';
