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

-- task_events_shown: what shows the state and history of several tasks, and their artifacts if asked for
select task_id, seq, fence, write_no, kind, body, is_message, created_at
  from task_events
 where task_id in (select value from json_each(:task_ids))
   and (is_message or (kind = 'artifact' and :artifacts))
union all
select task_id, seq, fence, write_no, kind, body, is_message, created_at
  from task_events as last
 where task_id in (select value from json_each(:task_ids)) and not is_message
   and seq = (select max(seq) from task_events
               where task_events.task_id = last.task_id and kind <> 'artifact')
 order by task_id, seq;

-- task_events_delete: the oldest :n events of a log, up to :until
delete from task_events
 where task_id = :task_id and seq <= :until
   and seq < (select min(seq) from task_events where task_id = :task_id) + :n
returning seq;
