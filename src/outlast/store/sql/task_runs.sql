-- task_runs_open: the run that a claim begins
insert into task_runs (task_id, fence, worker_id, step, attempt, started_at)
values (:task_id, :fence, :worker_id, :step, :attempt, (select now from clock));

-- task_runs_end: how the run ended, once
update task_runs set ended_at = (select now from clock), ended_write_no = :write_no,
                     outcome = :outcome, error = :error
 where task_id = :task_id and fence = :fence and ended_at is null;

-- task_runs_list: every run of a task, in order
select * from task_runs where task_id = :task_id order by fence;

-- task_runs_unproven: the run under this fence, unless its worker's process is proven to be gone
select task_runs.worker_id from task_runs
  left join workers on workers.worker_id = task_runs.worker_id
 where task_runs.task_id = :task_id and task_runs.fence = :fence
   and task_runs.ended_write_no is null and workers.worker_id is not null
   and (workers.dead_at is null or not workers.is_gone);

-- task_runs_delete: the runs of a task that has expired
delete from task_runs where task_id = :task_id;

-- task_runs_lose: ends the runs of all leases
update task_runs set ended_at = (select now from clock), outcome = 'lost'
 where ended_at is null
   and exists (select 1 from tasks
                where tasks.task_id = task_runs.task_id and tasks.fence = task_runs.fence
                  and tasks.lease_owner is not null);
