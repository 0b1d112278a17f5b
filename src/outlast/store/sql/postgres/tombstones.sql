-- tombstones_take: the tombstone, locked by who deletes a piece of the log; nothing when the log is gone
-- differs: PostgreSQL locks rows; of two sweeps only one deletes a piece
select task_id from tombstones where task_id = :task_id and log_left for no key update skip locked;
