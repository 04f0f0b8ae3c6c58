-- More limits of tiers: on keys of scoped state, and on the state of each workflow.
--
-- The limits of a tier that have no column of their own are one JSON document, so that another one needs no change of the schema.

ALTER TABLE tiers ADD COLUMN quotas TEXT;        -- JSON by limit; NULL: none

-- How much scoped state a workspace has, or a workflow in it, where a tier limits that: counted when a write first asks, and kept up to
-- date from then on by the writes themselves. Those without a limit have no row, and pay no more than a look for one.

CREATE TABLE state_counts (
    workspace_id TEXT NOT NULL,
    workflow_id  TEXT NOT NULL,                  -- '': all state of the workspace
    bytes        INTEGER NOT NULL,
    keys         INTEGER NOT NULL,
    PRIMARY KEY (workspace_id, workflow_id)
) STRICT, WITHOUT ROWID;

-- The counts before were of workspaces' bytes alone. Their table stays, empty, for processes of the version before that still run.

DROP TRIGGER hold_new_scope;
DROP TRIGGER hold_changed_scope;
DELETE FROM state_held;
