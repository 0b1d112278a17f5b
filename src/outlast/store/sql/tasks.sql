-- tasks_create: a new task in SUBMITTED, claimable at once; event 1 is written beside it
insert into tasks (task_id, agent, tenant, owner, context_id, workflow, version, state, status,
                   status_at, step, visit, ready_at, next_seq, give_up_at, ledger_id, metadata,
                   priority, created_at, updated_at)
select :task_id, :agent, :tenant, :owner, :context_id, :workflow, :version, 'submitted', :status,
       now, :step, 1, now, 2, now + :max_age, :task_id, :metadata,
       :priority, now, now
  from clock;

-- tasks_find: the task of this id within the scope, or nothing
select * from tasks
 where task_id = :task_id and agent = :agent and tenant = :tenant and owner = :owner;

-- tasks_standing: the state and the log's end of the task within the scope, and nothing else
select state, next_seq from tasks
 where task_id = :task_id and agent = :agent and tenant = :tenant and owner = :owner;

-- tasks_page: the tasks of a scope after a place, the last to change their status first
select * from tasks
 where agent = :agent and tenant = :tenant and owner = :owner
   and (cast(:context_id as text) is null or context_id = :context_id)
   and (cast(:state as text) is null or state = :state)
   and status_at >= :changed_since
   and (status_at, task_id) < (:status_at, :task_id)
 order by status_at desc, task_id desc limit :n;

-- tasks_count: how many tasks a list has, counted up to :n
select count(*) as total from (
    select 1 from tasks
     where agent = :agent and tenant = :tenant and owner = :owner
       and (cast(:context_id as text) is null or context_id = :context_id)
       and (cast(:state as text) is null or state = :state)
       and status_at >= :changed_since
     limit :n) as counted;

-- tasks_ends: where the logs of these tasks end
select task_id, next_seq from tasks where task_id in (select value from json_each(:task_ids));

-- tasks_take: the row, locked by a writer that will change it in this transaction
select tasks.*, (select now from clock) as now from tasks where task_id = :task_id;

-- tasks_take_free: the row as `tasks_take`, or nothing when somebody has it locked
select tasks.*, (select now from clock) as now from tasks where task_id = :task_id;

-- tasks_claim: leases up to :n ready tasks of one version to a worker that is not dead, fair between tenants
update tasks set lease_owner = :worker_id, fence = fence + 1, write_no = 0, ready_at = null,
                 updated_at = (select now from clock)
 where task_id in (
        select task_id from (
            select task_id, ready_at, priority,
                   row_number() over (partition by tenant order by priority, ready_at) as turn
              from tasks
             where agent = :agent and workflow = :workflow and version = :version
               and lease_owner is null and ready_at is not null
               and ready_at <= (select now from clock)) as ready
         order by turn, priority, ready_at
         limit :n)
   and exists (select 1 from workers where worker_id = :worker_id and dead_at is null)
returning *, updated_at as claimed_at, false as run_opened;

-- tasks_lock: the rows of a batch that nobody else has locked, in task_id order
select task_id from tasks where task_id in (select value from json_each(:task_ids)) order by task_id;

-- tasks_lock_patiently: the rows of a batch, waiting for whoever has them locked
select task_id from tasks where task_id in (select value from json_each(:task_ids)) order by task_id;

-- tasks_commit: the one predicate of a worker's write: changes nothing under old numbers, against a mark or past an unread message
update tasks set
    write_no = write_no + 1,
    next_seq = next_seq + :events,
    state = coalesce(cast(:state as text), state),
    status = coalesce(cast(:status as text), status),
    status_at = case when cast(:status as text) is null then status_at
                     else (select now from clock) end,
    checkpoint = coalesce(cast(:checkpoint as text), checkpoint),
    step = coalesce(cast(:step as text), step),
    visit = coalesce(cast(:visit as bigint), visit),
    ending_as = coalesce(cast(:ending_as as text), ending_as),
    attempt = case when :commits then 1 else attempt end + :failures,
    crashes = case when :commits then 0 else crashes end,
    commit_seq = case when :commits then next_seq + :events - 1 else commit_seq end,
    read_seq = case when read_seq < :read then :read else read_seq end,
    fence = fence + case when :ends then 1 else 0 end,
    lease_owner = case when :ends then null else lease_owner end,
    ready_at = coalesce(cast(:ready_at as bigint),
                        (select now from clock) + cast(:ready_after as bigint)),
    pause_id = case when :pauses then next_seq + :events - 1 end,
    pause_deadline_at = coalesce(cast(:deadline_at as bigint),
                                 (select now from clock) + cast(:deadline_after as bigint)),
    remind_at = coalesce(cast(:remind_at as bigint),
                         (select now from clock) + cast(:remind_after as bigint)),
    held_reason = cast(:held_reason as text),
    expires_at = (select now from clock) + cast(:retention as bigint),
    fold_at = case when next_seq + :events > fold_at then null
                   when cast(:retention as bigint) is not null
                        and next_seq + :events > :fold_from then null
                   else fold_at end,
    updated_at = (select now from clock)
 where task_id = :task_id and fence = :fence and write_no = :write_no
   and (cancel_requested_at is null or not :stopped_by_mark)
   and (not :closes or inbox_seq <= read_seq or inbox_seq <= :read)
returning next_seq, ready_at, cancel_requested_at;

-- tasks_outcome: what became of the write whose numbers were (fence, write_no + 1)
select fence, write_no, next_seq, cancel_requested_at, inbox_seq, read_seq,
       exists (select 1 from task_events
                where task_events.task_id = tasks.task_id and task_events.fence = :fence
                  and task_events.write_no = cast(:write_no as bigint) + 1) as logged,
       exists (select 1 from task_runs
                where task_runs.task_id = tasks.task_id and task_runs.fence = :fence
                  and task_runs.ended_write_no = cast(:write_no as bigint) + 1) as ended
  from tasks where task_id = :task_id;

-- tasks_answer: an answer to the pause that is still the one seen; the task goes on
update tasks set state = 'working', status = :status, status_at = (select now from clock),
                 ready_at = (select now from clock), next_seq = next_seq + :events,
                 pause_id = null, pause_deadline_at = null, remind_at = null,
                 updated_at = (select now from clock)
 where task_id = :task_id and state = :state and pause_id = :pause_id
returning next_seq;

-- tasks_receive: room for a message to a task that works and is not about to end; its status stays
update tasks set inbox_seq = next_seq, next_seq = next_seq + 1,
                 status_at = (select now from clock), updated_at = (select now from clock)
 where task_id = :task_id and state in ('submitted', 'working')
   and cancel_requested_at is null and ending_as is null
returning next_seq;

-- tasks_end: ends from outside a task that has not ended, whoever runs it
update tasks set state = :state, status = :status, status_at = (select now from clock),
                 fence = fence + 1, lease_owner = null, ready_at = null, held_reason = null,
                 pause_id = null, pause_deadline_at = null, remind_at = null,
                 next_seq = next_seq + 1, expires_at = (select now from clock) + :retention,
                 fold_at = case when next_seq + 1 > fold_at or next_seq + 1 > :fold_from then null
                                else fold_at end,
                 updated_at = (select now from clock)
 where task_id = :task_id and state in ('submitted', 'working', 'input-required', 'auth-required')
returning next_seq, fence;

-- tasks_mark: the task will end by its hook; without a lease it becomes claimable for that at once
update tasks set cancel_requested_at = (select now from clock),
                 ending_as = coalesce(ending_as, :ending_as), state = 'working',
                 status = coalesce(cast(:status as text), status),
                 status_at = case when cast(:status as text) is null then status_at
                                  else (select now from clock) end,
                 ready_at = case when lease_owner is null then (select now from clock) end,
                 pause_id = null, pause_deadline_at = null, remind_at = null, held_reason = null,
                 next_seq = next_seq + :events,
                 updated_at = (select now from clock)
 where task_id = :task_id and cancel_requested_at is null
   and state in ('submitted', 'working', 'input-required', 'auth-required')
returning next_seq, fence;

-- tasks_begin_hook: a task that nobody may run any more as it was goes on in its failure step
update tasks set step = :step, visit = visit + 1, ending_as = :ending_as, attempt = 1, crashes = 0,
                 lease_owner = null, fence = fence + 1, ready_at = (select now from clock),
                 updated_at = (select now from clock)
 where task_id = :task_id;

-- tasks_release: gives back a lease whose claim the worker never heard of
update tasks set lease_owner = null, fence = fence + 1, ready_at = (select now from clock),
                 updated_at = (select now from clock)
 where task_id = :task_id and fence = :fence and lease_owner = :worker_id
returning task_id;

-- tasks_leased_to: what this worker runs as the store sees it
select task_id, fence, cancel_requested_at, ending_as from tasks where lease_owner = :worker_id;

-- tasks_orphaned: leased tasks whose worker is dead or has no row, with what their deaths prove
select tasks.task_id, tasks.fence,
       coalesce(task_runs.started_at <= workers.dead_at and not workers.signed_off, false)
           as crashed
  from tasks
  left join workers on workers.worker_id = tasks.lease_owner
  left join task_runs on task_runs.task_id = tasks.task_id and task_runs.fence = tasks.fence
 where tasks.lease_owner is not null
   and (workers.worker_id is null or workers.dead_at is not null)
 order by tasks.task_id
 limit :n;

-- tasks_take_over: ends a lease that is still the dead worker's; the task is claimable after the delay
update tasks set lease_owner = null, fence = fence + 1,
                 ready_at = (select now from clock) + :delay, crashes = crashes + :crashes,
                 updated_at = (select now from clock)
 where task_id = :task_id and fence = :fence and lease_owner is not null
returning task_id;

-- tasks_overdue_pauses: pauses whose deadline has passed
select task_id, pause_id from tasks
 where pause_deadline_at is not null and pause_deadline_at <= (select now from clock)
 order by pause_deadline_at limit :n;

-- tasks_overdue_reminders: pauses whose reminder has come
select task_id, pause_id from tasks
 where remind_at is not null and remind_at <= (select now from clock)
 order by remind_at limit :n;

-- tasks_remind: makes room for the question to be said again, once
update tasks set remind_at = null, next_seq = next_seq + 1,
                 status_at = (select now from clock), updated_at = (select now from clock)
 where task_id = :task_id and pause_id = :pause_id and remind_at is not null
returning next_seq, fence;

-- tasks_overdue_lives: tasks that have reached the end of their longest life, marked ones after a grace
select task_id from tasks
 where state in ('submitted', 'working', 'input-required', 'auth-required')
   and give_up_at <= (select now from clock)
   and (cancel_requested_at is null
        or (give_up_at <= (select now from clock) - :hook_grace
            and cancel_requested_at <= (select now from clock) - :hook_grace))
 order by give_up_at limit :n;

-- tasks_spare: moves by :gap the deadlines, of pauses and lives, that came due while nobody swept
update tasks
   set pause_deadline_at = pause_deadline_at
           + case when pause_deadline_at > :since and pause_deadline_at <= :until
                  then :gap else 0 end,
       give_up_at = give_up_at
           + case when give_up_at > :since and give_up_at <= :until then :gap else 0 end
 where task_id in (
        select task_id from tasks
         where state in ('submitted', 'working', 'input-required', 'auth-required')
           and task_id > :after_id
           and ((pause_deadline_at > :since and pause_deadline_at <= :until)
                or (give_up_at > :since and give_up_at <= :until))
         order by task_id limit :n)
returning task_id;

-- tasks_unhold: a held task is claimable again, with its attempts back at one
update tasks set held_reason = null, attempt = 1, crashes = 0,
                 ready_at = (select now from clock), updated_at = (select now from clock)
 where task_id = :task_id and held_reason is not null
returning task_id;

-- tasks_held: what waits for an operator, the longest first
select * from tasks where agent = :agent and held_reason is not null
 order by updated_at limit :n;

-- tasks_in_flight: unfinished tasks per version
select workflow, version, count(*) as tasks,
       count(*) filter (where held_reason is not null) as held
  from tasks
 where agent = :agent and state in ('submitted', 'working', 'input-required', 'auth-required')
 group by workflow, version order by workflow, version;

-- tasks_next_due: when the next timer, retry, pause or life of an unfinished task comes due
select min(due) as due from (
    select min(ready_at) as due from tasks where lease_owner is null and ready_at is not null
    union all
    select min(pause_deadline_at) from tasks where pause_deadline_at is not null
    union all
    select min(remind_at) from tasks where remind_at is not null
    union all
    select min(give_up_at) from tasks
     where state in ('submitted', 'working', 'input-required', 'auth-required')) as dues;

-- tasks_peek: the task, whatever its scope
select * from tasks where task_id = :task_id;

-- tasks_unfolded: tasks whose next fold is due
select task_id from tasks where fold_at is null order by task_id limit :n;

-- tasks_folded: a task is folded up to :seq; the next fold is due at :fold_at, or now if its log has grown or ended; of one that has, the log may be trimmed after :window
update tasks
   set fold_at = case when next_seq > :fold_at then null
                      when next_seq - 1 > :seq
                           and state in ('completed', 'failed', 'canceled', 'rejected') then null
                      else :fold_at end,
       trim_at = case when next_seq - 1 = :seq and trimmed_seq < next_seq - 2
                           and state in ('completed', 'failed', 'canceled', 'rejected')
                      then status_at + :window else trim_at end
 where task_id = :task_id;

-- tasks_put_off_fold: a task that cannot be folded is tried again when its log is :n longer
update tasks set fold_at = next_seq + :n where task_id = :task_id;

-- tasks_trimmable: finished tasks whose logs may be trimmed and whose webhooks have ended, the longest first
select task_id from tasks
 where trim_at is not null and trim_at <= (select now from clock)
   and not exists (select 1 from webhooks
                    where webhooks.task_id = tasks.task_id and exhausted_at is null
                      and (due_at is not null or lease_owner is not null))
 order by trim_at limit :n;

-- tasks_trim: from now on the log begins with its last event, where a fold holds all of it and no webhook needs it
update tasks set trimmed_seq = next_seq - 2
 where task_id = :task_id and trim_at is not null and trim_at <= (select now from clock)
   and exists (select 1 from task_folds
                where task_folds.task_id = tasks.task_id and task_folds.seq = tasks.next_seq - 1)
   and not exists (select 1 from webhooks
                    where webhooks.task_id = tasks.task_id and exhausted_at is null
                      and (due_at is not null or lease_owner is not null))
returning trimmed_seq;

-- tasks_trimmed: nothing of the log is left to trim
update tasks set trim_at = null where task_id = :task_id;

-- tasks_fold_again: a task whose last fold is gone, and that cannot be trimmed before it has it again
update tasks set trim_at = null, fold_at = null where task_id = :task_id and trimmed_seq = 0;

-- tasks_expired: finished tasks whose retention is over and whose webhooks have ended, the longest first
select task_id, ledger_id from tasks
 where expires_at is not null and expires_at <= (select now from clock)
   and not exists (select 1 from webhooks
                    where webhooks.task_id = tasks.task_id and exhausted_at is null
                      and (due_at is not null or lease_owner is not null))
 order by expires_at limit :n;

-- tasks_take_sharing: every task that names this ledger, locked in the order of all writers
select * from tasks where ledger_id = :ledger_id order by task_id;

-- tasks_expire: deletes a finished task whose retention is over and whose webhooks have ended
delete from tasks
 where task_id = :task_id and expires_at is not null and expires_at <= (select now from clock)
   and not exists (select 1 from webhooks
                    where webhooks.task_id = tasks.task_id and exhausted_at is null
                      and (due_at is not null or lease_owner is not null))
returning agent, tenant, owner;

-- tasks_lock_owner: creates of one owner take turns from here to their commit; SQLite has one writer
select 1 as locked where :agent <> '' or :tenant <> '' or :owner <> '';

-- tasks_count_open: how many unfinished tasks an owner has, counted up to :n
select count(*) as open from (
    select 1 as one from tasks
     where agent = :agent and tenant = :tenant and owner = :owner
       and state in ('submitted', 'working', 'input-required', 'auth-required')
     limit :n
) as counted;

-- tasks_lock_unfinished: how many unfinished tasks are leased, all of them locked
select count(lease_owner) as leased from tasks where state in ('submitted', 'working', 'input-required', 'auth-required');

-- tasks_fence_off: ends every lease, and leaves no fence that may have been given in a lost future
update tasks
   set fence = case when fence + :past > :beyond then fence + :past else :beyond end, lease_owner = null, updated_at = (select now from clock),
       ready_at = case when lease_owner is null then ready_at else (select now from clock) end
 where state in ('submitted', 'working', 'input-required', 'auth-required');
