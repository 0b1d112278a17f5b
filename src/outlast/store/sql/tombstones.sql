-- tombstones_put: what its owner is told of a task that has expired
insert into tombstones (task_id, agent, tenant, owner, expired_at, log_left)
values (:task_id, :agent, :tenant, :owner, (select now from clock), :log_left);

-- tombstones_with_log: tasks that expired and whose logs are still to be deleted
select task_id from tombstones where log_left order by task_id limit :n;

-- tombstones_take: the tombstone, locked by who deletes a piece of the log; nothing when the log is gone
select task_id from tombstones where task_id = :task_id and log_left;

-- tombstones_without_log: the log is gone
update tombstones set log_left = false where task_id = :task_id;

-- tombstones_aged: tasks that expired longer ago than :age
select task_id from tombstones
 where expired_at < (select now from clock) - :age and not log_left
 order by expired_at limit :n;

-- tombstones_forget: a task that expired longer ago than :age
delete from tombstones
 where task_id = :task_id and expired_at < (select now from clock) - :age and not log_left
returning task_id;
