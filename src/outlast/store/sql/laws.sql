-- laws_seq_has_no_gap: tasks whose log is not 1 … next_seq - 1, less what is trimmed
select tasks.task_id, tasks.trimmed_seq, tasks.next_seq - 1 as expected,
       count(task_events.seq) as events, min(task_events.seq) as first, max(task_events.seq) as last
  from tasks
  left join task_events
    on task_events.task_id = tasks.task_id and task_events.seq > tasks.trimmed_seq
 group by tasks.task_id, tasks.trimmed_seq, tasks.next_seq
having count(task_events.seq) <> tasks.next_seq - 1 - tasks.trimmed_seq
    or coalesce(min(task_events.seq), 1) <> tasks.trimmed_seq + 1
    or coalesce(max(task_events.seq), 0) <> tasks.next_seq - 1;

-- laws_what_is_trimmed_is_folded: tasks whose trimmed events no fold holds
select task_id, trimmed_seq from tasks
 where trimmed_seq > 0
   and not exists (select 1 from task_folds
                    where task_folds.task_id = tasks.task_id
                      and task_folds.seq between tasks.trimmed_seq and tasks.next_seq - 1);

-- laws_fence_never_falls: events written under an older fence than one before them
select later.task_id, later.seq, later.fence, earlier.fence as fence_before
  from task_events as later
  join task_events as earlier
    on earlier.task_id = later.task_id and earlier.seq = later.seq - 1
 where later.fence < earlier.fence;

-- laws_terminal_event_is_last: tasks whose terminal events are not exactly one, at the end, as the row says
select task_id, state, terminal_events, last_terminal, last from (
    select tasks.task_id, tasks.state, tasks.next_seq - 1 as last,
           count(task_events.seq) as terminal_events, max(task_events.seq) as last_terminal
      from tasks
      left join task_events
        on task_events.task_id = tasks.task_id and task_events.kind = 'status'
       and (task_events.body like '{"state":"completed"%' or task_events.body like '{"state":"failed"%'
         or task_events.body like '{"state":"canceled"%' or task_events.body like '{"state":"rejected"%')
     group by tasks.task_id, tasks.state, tasks.next_seq) as ends
 where (state in ('completed', 'failed', 'canceled', 'rejected')
        and (terminal_events <> 1 or last_terminal <> last))
    or (state not in ('completed', 'failed', 'canceled', 'rejected') and terminal_events <> 0);

-- laws_status_has_one_time: tasks that are listed by another time than their status shows
select tasks.task_id, tasks.status_at, task_events.seq, task_events.created_at
  from tasks join task_events on task_events.task_id = tasks.task_id
 where task_events.created_at <> tasks.status_at
   and task_events.seq = (select max(seq) from task_events as said
                           where said.task_id = tasks.task_id and said.kind <> 'artifact');

-- laws_no_orphans: rows of the log, of runs, ledgers, folds and webhooks that no task names
select 'task_events' as of_table, task_id as id from task_events
 where not exists (select 1 from tasks where tasks.task_id = task_events.task_id)
   and not exists (select 1 from tombstones
                    where tombstones.task_id = task_events.task_id and log_left)
union all
select 'task_runs', task_id from task_runs
 where not exists (select 1 from tasks where tasks.task_id = task_runs.task_id)
union all
select 'task_ledger', ledger_id from task_ledger
 where not exists (select 1 from tasks where tasks.ledger_id = task_ledger.ledger_id)
union all
select 'task_folds', task_id from task_folds
 where not exists (select 1 from tasks where tasks.task_id = task_folds.task_id)
union all
select 'webhooks', task_id from webhooks
 where not exists (select 1 from tasks where tasks.task_id = webhooks.task_id);

-- laws_leases_have_runs: leased tasks without an open run, and open runs without the lease
select task_id, fence from tasks
 where lease_owner is not null
   and not exists (select 1 from task_runs
                    where task_runs.task_id = tasks.task_id and task_runs.fence = tasks.fence
                      and ended_at is null)
union all
select task_id, fence from task_runs
 where ended_at is null
   and not exists (select 1 from tasks
                    where tasks.task_id = task_runs.task_id and tasks.fence = task_runs.fence
                      and tasks.lease_owner = task_runs.worker_id);

-- laws_nothing_leased_to_the_dead: tasks leased to a worker that is dead or unknown
select tasks.task_id, tasks.lease_owner from tasks
  left join workers on workers.worker_id = tasks.lease_owner
 where tasks.lease_owner is not null
   and (workers.worker_id is null or workers.dead_at is not null);

-- laws_answers_are_kept_once: questions with more than one answer, and answers to no question
select question.task_id, question.seq, count(answer.seq) as answers
  from task_events as question
  join task_events as answer
    on answer.task_id = question.task_id and answer.kind = 'message'
   and answer.body like '{"state":"working","answers":' || question.seq || ',%'
 where question.is_message and question.kind = 'status'
 group by question.task_id, question.seq
having count(answer.seq) > 1
union all
select answer.task_id, answer.seq, 0 from task_events as answer
 where answer.kind = 'message' and answer.body like '{"state":"working","answers":%'
   and answer.seq > (select trimmed_seq from tasks where tasks.task_id = answer.task_id)
   and answer.body not like '{"state":"working","answers":null,%'
   and not exists (select 1 from task_events as question
                    where question.task_id = answer.task_id and question.seq < answer.seq
                      and question.is_message and question.kind = 'status'
                      and answer.body like
                          '{"state":"working","answers":' || question.seq || ',%');

-- laws_no_message_is_left_unread: tasks that ended by their own word past a message in their inbox
select task_id, state, inbox_seq, read_seq from tasks
 where state in ('completed', 'rejected') and inbox_seq > read_seq and step <> 'start';

-- laws_the_inbox_is_in_the_log: tasks whose inbox ends with something else than a caller's message
select tasks.task_id, inbox_seq from tasks
 where inbox_seq <> 0
   and not exists (select 1 from task_events
                    where task_events.task_id = tasks.task_id and task_events.seq = inbox_seq
                      and task_events.kind = 'message' and is_message);

-- laws_effects: every effect with its result
select ledger_id, key, kind, result, done_at from task_ledger where kind = 'effect'
 order by ledger_id, key;
