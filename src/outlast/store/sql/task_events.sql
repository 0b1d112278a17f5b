-- task_events_append: one event at its seq, at the time of the row's change; the numbers say who wrote it
insert into task_events (task_id, seq, fence, write_no, n, kind, body, is_message, created_at)
values (:task_id, :seq, :fence, :write_no, :n, :kind, :body, :is_message,
        (select case when cast(:kind as text) = 'artifact' then updated_at else status_at end
           from tasks where tasks.task_id = :task_id));

-- task_events_since: the log after :seq, in order
select seq, fence, write_no, kind, body, is_message, created_at from task_events
 where task_id = :task_id and seq > :seq order by seq limit :n;

-- task_events_get: one event
select seq, fence, write_no, kind, body, is_message, created_at from task_events
 where task_id = :task_id and seq = :seq;

-- task_events_messages: the messages and questions up to :before, newest first
select seq, fence, write_no, kind, body, is_message, created_at from task_events
 where task_id = :task_id and is_message and seq < :before order by seq desc limit :n;

-- task_events_received: callers' messages after :seq, in order
select seq, fence, write_no, kind, body, is_message, created_at from task_events
 where task_id = :task_id and is_message and kind = 'message' and seq > :seq order by seq limit :n;

-- task_events_artifacts: artifact events in (:after, :until], in order
select seq, fence, write_no, kind, body, is_message, created_at from task_events
 where task_id = :task_id and kind = 'artifact' and seq > :after and seq <= :until order by seq;

-- task_events_shown: what shows the state and history of several tasks; with their artifacts, if asked for, after their folds
with listed as (
    select value as task_id,
           case when :artifacts
                then (select max(seq) from task_folds where task_folds.task_id = value) end as folded
      from json_each(:task_ids))
select listed.task_id, seq, fence, write_no, kind, body, is_message, created_at
  from listed
 cross join task_events
    on task_events.task_id = listed.task_id and task_events.seq > coalesce(listed.folded, 0)
 where is_message or (kind = 'artifact' and :artifacts)
union all
select listed.task_id, seq, fence, write_no, kind, body, is_message, created_at
  from listed
 cross join task_events
    on task_events.task_id = listed.task_id
   and seq = (select seq from task_events as last
               where last.task_id = listed.task_id and last.kind <> 'artifact'
               order by last.seq desc limit 1)
 where not is_message
 order by 1, 2;

-- task_events_weigh: how many bytes `task_events_shown` has of each of several tasks, and its newest fold
with listed as (
    select value as task_id,
           case when :artifacts
                then (select max(seq) from task_folds where task_folds.task_id = value) end as folded
      from json_each(:task_ids))
select listed.task_id,
       coalesce((select sum(length(cast(body as blob))) from task_events
                  where task_events.task_id = listed.task_id and seq > coalesce(listed.folded, 0)
                    and (is_message or (kind = 'artifact' and :artifacts))), 0)
     + coalesce((select case when is_message then 0 else length(cast(body as blob)) end from task_events
                  where task_events.task_id = listed.task_id and kind <> 'artifact'
                  order by seq desc limit 1), 0) as in_events,
       coalesce((select length(task) from task_folds
                  where task_folds.task_id = listed.task_id
                  order by seq desc limit 1), 0) as in_fold
  from listed;

-- task_events_delete: the oldest :n events of a log, up to :until
delete from task_events
 where task_id = :task_id and seq <= :until
   and seq < (select min(seq) from task_events where task_id = :task_id) + :n
returning seq;
