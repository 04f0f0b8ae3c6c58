-- The statements that bring a schema up to date. They are few and run once, so they are plain: arguments as %s.

-- name: look
-- Whether the schema has our record of migrations, and how many tables there are in it. args: schema
SELECT coalesce(bool_or(c.relname = 'migrations' AND obj_description(c.oid, 'pg_class') = 'stepwell'), false), count(c.oid)
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S');

-- name: has_schema
SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s);

-- name: create_schema
CREATE SCHEMA {schema};

-- name: create_record
-- The record, with a comment that says whose it is: others have tables called migrations, too.
CREATE TABLE {schema}.migrations (
    number     bigint PRIMARY KEY,
    name       text NOT NULL,
    digest     text NOT NULL,
    is_done    boolean NOT NULL,                 -- its post part, too
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE {schema}.migrations IS 'stepwell';

-- name: recorded
SELECT number, digest, is_done FROM {schema}.migrations;

-- name: lock_migrations
-- One migration at a time in a database. The number is "Swel" in ASCII. returns: whether it is ours, for as long as it takes
SELECT pg_try_advisory_xact_lock(1400333676) FROM set_config('idle_in_transaction_session_timeout', '0', true);

-- name: set_bounds
-- A change of a table waits at most so long for its lock, since every later query of the table queues behind it.
SELECT set_config('lock_timeout', '3s', true);

-- name: record
-- args: number, name, digest, is_done
INSERT INTO {schema}.migrations (number, name, digest, is_done) VALUES (%s, %s, %s, %s);

-- name: record_post
UPDATE {schema}.migrations SET is_done = true WHERE number = %s;

-- name: half_built
-- Indexes that a killed CREATE INDEX CONCURRENTLY left: they cost every write and serve no read. args: schema
SELECT c.relname
FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND NOT i.indisvalid;

-- name: has_row_security
-- Whether every table is guarded, or none; NULL if only some are. args: schema, tables
SELECT CASE WHEN bool_and(c.relrowsecurity) THEN true WHEN NOT bool_or(c.relrowsecurity) THEN false END
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = ANY(%s);

-- name: is_restricted
-- Whether row-level security applies to this user. args: schema
SELECT row_security_active(c.oid)
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = 'executions' AND n.nspname = %s;
