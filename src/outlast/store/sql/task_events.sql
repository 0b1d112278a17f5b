-- task_events_append: one event at its seq; the numbers say who wrote it
insert into task_events (task_id, seq, fence, write_no, n, kind, body, is_message, created_at)
values (:task_id, :seq, :fence, :write_no, :n, :kind, :body, :is_message, (select now from clock));

-- task_events_since: the log after :seq, in order
select seq, fence, write_no, kind, body, is_message, created_at from task_events
 where task_id = :task_id and seq > :seq order by seq limit :n;

-- task_events_get: one event
select seq, fence, write_no, kind, body, is_message, created_at from task_events
 where task_id = :task_id and seq = :seq;

-- task_events_messages: the messages and questions up to :before, newest first
select seq, fence, write_no, kind, body, is_message, created_at from task_events
 where task_id = :task_id and is_message and seq < :before order by seq desc limit :n;

-- task_events_artifacts: artifact events in (:after, :until], in order
select seq, fence, write_no, kind, body, is_message, created_at from task_events
 where task_id = :task_id and kind = 'artifact' and seq > :after and seq <= :until order by seq;
