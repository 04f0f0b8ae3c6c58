-- A change that any database tool could make in a Stepwell file. The demonstration makes it in a copy.

-- name: edit_mutations
-- Replaces the stored mutations of one commit; args: the bytes that are there, the bytes to put in their place.
UPDATE commits SET body = ?2 WHERE body = ?1;
