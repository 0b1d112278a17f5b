-- task_events_shown: what shows the state and history of several tasks; with their artifacts, if asked for, after their folds
-- differs: PostgreSQL unfolds arrays of JSON by another function; looks up the last status once per task
with listed as materialized (
    select named.task_id,
           case when cast(:artifacts as boolean)
                then (select max(seq) from task_folds
                       where task_folds.task_id = named.task_id) end as folded
      from jsonb_array_elements_text(cast(:task_ids as jsonb)) as named (task_id))
select events.task_id, seq, fence, write_no, kind, body, is_message, created_at
  from listed
  join task_events as events
    on events.task_id = listed.task_id and events.seq > coalesce(listed.folded, 0)
 where is_message or (kind = 'artifact' and cast(:artifacts as boolean))
union all
select listed.task_id, seq, fence, write_no, kind, body, is_message, created_at
  from listed cross join lateral (
       select * from task_events
        where task_events.task_id = listed.task_id and kind <> 'artifact'
        order by seq desc limit 1) as last
 where not is_message
 order by task_id, seq;

-- task_events_weigh: how many bytes `task_events_shown` has of each of several tasks, and its newest fold
-- differs: PostgreSQL unfolds arrays of JSON by another function, and knows the bytes of a text without reading it
with listed as (
    select named.task_id,
           case when cast(:artifacts as boolean)
                then (select max(seq) from task_folds
                       where task_folds.task_id = named.task_id) end as folded
      from jsonb_array_elements_text(cast(:task_ids as jsonb)) as named (task_id))
select listed.task_id,
       coalesce((select sum(octet_length(body)) from task_events
                  where task_events.task_id = listed.task_id and seq > coalesce(listed.folded, 0)
                    and (is_message or (kind = 'artifact' and cast(:artifacts as boolean)))), 0)
     + coalesce((select case when is_message then 0 else octet_length(body) end from task_events
                  where task_events.task_id = listed.task_id and kind <> 'artifact'
                  order by seq desc limit 1), 0) as in_events,
       coalesce((select octet_length(task) from task_folds
                  where task_folds.task_id = listed.task_id
                  order by seq desc limit 1), 0) as in_fold
  from listed;
