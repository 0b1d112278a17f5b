-- task_folds_newest_of: the newest fold of each of several tasks
-- differs: PostgreSQL unfolds arrays of JSON by another function
select task_id, seq, task from task_folds as newest
 where task_id in (select jsonb_array_elements_text(cast(:task_ids as jsonb)))
   and seq = (select max(seq) from task_folds where task_folds.task_id = newest.task_id);
