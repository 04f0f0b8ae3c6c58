-- How much scoped state a workspace has, where its tier limits that: counted when a write first asks, and kept by the writes that have
-- it locked. Other workspaces have no row, so that their writers never wait for each other. A count is forgotten when a tier or a
-- workspace is put, and by every sweep: who wrote without a limit while one was put is missing from it no longer than that.

CREATE TABLE {schema}.state_held (
    workspace_id text COLLATE "C" PRIMARY KEY,
    bytes        bigint NOT NULL
);

CREATE INDEX state_scopes_by_workspace ON {schema}.state_scopes (workspace_id);

CREATE POLICY workspace_only ON {schema}.state_held
    USING (workspace_id = nullif(current_setting('stepwell.workspace', true), ''));
