-- tasks_take: the row, locked by a writer that will change it in this transaction
-- differs: PostgreSQL locks rows, SQLite's `begin immediate` has locked the file
select tasks.*, (select now from clock) as now from tasks where task_id = :task_id
   for no key update of tasks;

-- tasks_take_free: the row as `tasks_take`, or nothing when somebody has it locked
-- differs: PostgreSQL locks rows; whoever sweeps must not wait for a frozen transaction
select tasks.*, (select now from clock) as now from tasks where task_id = :task_id
   for no key update of tasks skip locked;

-- tasks_ends: where the logs of these tasks end
-- differs: PostgreSQL has no json_each of an array
select task_id, next_seq from tasks
 where task_id in (select jsonb_array_elements_text(cast(:task_ids as jsonb)));

-- tasks_lock: the rows of a batch that nobody else has locked, in task_id order
-- differs: PostgreSQL locks rows
select task_id from tasks
 where task_id in (select jsonb_array_elements_text(cast(:task_ids as jsonb)))
 order by task_id for no key update skip locked;

-- tasks_lock_patiently: the rows of a batch, waiting for whoever has them locked
-- differs: PostgreSQL locks rows
select task_id from tasks
 where task_id in (select jsonb_array_elements_text(cast(:task_ids as jsonb)))
 order by task_id for no key update;

-- tasks_claim: leases up to :n ready tasks of one version to a worker that is not dead, fair between tenants
-- differs: steps over the queues of (tenant, priority) by index, so that what waits costs nothing; locks
-- only what it takes, and has more to choose from than it takes, for claims at once; writes the runs too
with recursive queues (tenant, priority) as (
    (select tenant, priority from tasks
      where agent = :agent and workflow = :workflow and version = :version
        and lease_owner is null and ready_at is not null
      order by tenant, priority limit 1)
    union all
    select next.tenant, next.priority
      from queues cross join lateral (
           select tenant, priority from tasks
            where agent = :agent and workflow = :workflow and version = :version
              and lease_owner is null and ready_at is not null
              and (tenant, priority) > (queues.tenant, queues.priority)
            order by tenant, priority limit 1) as next
), ready as (
    select candidates.task_id, candidates.ready_at, queues.priority,
           row_number() over (partition by queues.tenant
                              order by queues.priority, candidates.ready_at) as turn
      from queues cross join lateral (
           select task_id, ready_at from tasks
            where agent = :agent and workflow = :workflow and version = :version
              and tenant = queues.tenant and priority = queues.priority
              and lease_owner is null and ready_at <= (select now from clock)
            order by ready_at limit cast(:n as bigint) + 16) as candidates
), chosen as (
    select task_id, row_number() over (order by turn, priority, ready_at) as place
      from ready order by place limit cast(:n as bigint) * 4 + 16
), locked as (
    select tasks.task_id
      from chosen join tasks on tasks.task_id = chosen.task_id
     where tasks.lease_owner is null and tasks.ready_at is not null
     order by chosen.place limit :n
       for no key update of tasks skip locked
), claimed as (
    update tasks set lease_owner = :worker_id, fence = fence + 1, write_no = 0, ready_at = null,
                     updated_at = (select now from clock)
     where task_id in (select task_id from locked)
       and lease_owner is null and ready_at is not null
       and exists (select 1 from workers where worker_id = :worker_id and dead_at is null)
    returning *
), runs as (
    insert into task_runs (task_id, fence, worker_id, step, attempt, started_at)
    select task_id, fence, :worker_id, step, attempt, updated_at from claimed
)
select *, updated_at as claimed_at, true as run_opened from claimed;

-- tasks_spare: moves by :gap the deadlines, of pauses and lives, that came due while nobody swept
-- differs: PostgreSQL locks rows, in the order of all writers, and would run a locking subquery of
-- a join again, past its limit, where it runs a `with` once
with due as materialized (
    select task_id from tasks
     where state in ('submitted', 'working', 'input-required', 'auth-required')
       and task_id > :after_id
       and ((pause_deadline_at > :since and pause_deadline_at <= :until)
            or (give_up_at > :since and give_up_at <= :until))
     order by task_id limit :n
       for no key update
)
update tasks
   set pause_deadline_at = pause_deadline_at
           + case when pause_deadline_at > :since and pause_deadline_at <= :until
                  then :gap else 0 end,
       give_up_at = give_up_at
           + case when give_up_at > :since and give_up_at <= :until then :gap else 0 end
 where task_id in (select task_id from due)
returning task_id;

-- tasks_take_sharing: every task that names this ledger, locked in the order of all writers
-- differs: PostgreSQL locks rows; of two that expire at once, the second must see that it is the last
select * from tasks where ledger_id = :ledger_id order by task_id for no key update;

-- tasks_lock_owner: creates of one owner take turns from here to their commit
-- differs: here transactions write at once, and two could both count one task too few
select 1 as locked from
    (select pg_advisory_xact_lock(hashtextextended(:agent || '/' || :tenant || '/' || :owner, 0)))
    as lock;

-- tasks_lock_unfinished: how many unfinished tasks are leased, all of them locked
-- differs: PostgreSQL locks rows, in the order of all writers
with locked as materialized (
    select lease_owner from tasks where state in ('submitted', 'working', 'input-required', 'auth-required')
     order by task_id for no key update
)
select count(lease_owner) as leased from locked;
