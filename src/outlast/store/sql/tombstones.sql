-- tombstones_put: what its owner is told of a task that has expired
insert into tombstones (task_id, agent, tenant, owner, expired_at)
values (:task_id, :agent, :tenant, :owner, (select now from clock));

-- tombstones_aged: tasks that expired longer ago than :age
select task_id from tombstones where expired_at < (select now from clock) - :age
 order by expired_at limit :n;

-- tombstones_forget: a task that expired longer ago than :age
delete from tombstones
 where task_id = :task_id and expired_at < (select now from clock) - :age
returning task_id;
