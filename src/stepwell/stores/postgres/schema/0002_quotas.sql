-- More limits of tiers: on keys of scoped state, and on the state of each workflow.
--
-- The limits of a tier that have no column of their own are one JSON document, so that another one needs no change of the schema.

ALTER TABLE {schema}.tiers ADD COLUMN quotas jsonb;  -- by limit; NULL: none

-- Bytes and keys of scoped state per workspace, and per workflow in it, only where a tier limits them: counted by the first write that
-- needs the numbers, then updated under a row lock. The others have no row, so their writers never wait for each other here. The counts
-- are deleted whenever a tier or a workspace is changed, and by every sweep; this corrects a count that missed a write made without a
-- limit, or by the version before. That one counts in state_held, which stays for it.
CREATE TABLE {schema}.state_counts (
    workspace_id text COLLATE "C" NOT NULL,
    workflow_id  text COLLATE "C" NOT NULL,      -- '': all state of the workspace
    bytes        bigint NOT NULL,
    keys         bigint NOT NULL,
    PRIMARY KEY (workspace_id, workflow_id)
);

CREATE POLICY workspace_only ON {schema}.state_counts
    USING (workspace_id = nullif(current_setting('stepwell.workspace', true), ''));
