-- task_folds_delete: the folds of a task that has expired
delete from task_folds where task_id = :task_id;

-- task_folds_newest: the newest fold of a task up to :until
select seq, task from task_folds
 where task_id = :task_id and seq <= :until order by seq desc limit 1;

-- task_folds_keep: a fold; whoever wrote it before wrote the same
insert into task_folds (task_id, seq, task) values (:task_id, :seq, :task)
on conflict (task_id, seq) do nothing;

-- task_folds_prune: keeps the newest :n folds of a task
delete from task_folds
 where task_id = :task_id
   and seq not in (select seq from task_folds where task_id = :task_id order by seq desc limit :n);

-- task_folds_newest_of: the newest fold of each of several tasks
select task_id, seq, task from task_folds as newest
 where task_id in (select value from json_each(:task_ids))
   and seq = (select max(seq) from task_folds where task_folds.task_id = newest.task_id);

-- task_folds_forget_lost: folds of more than there is
delete from task_folds
 where not exists (select 1 from tasks
                    where tasks.task_id = task_folds.task_id and task_folds.seq < tasks.next_seq);
