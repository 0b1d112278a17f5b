-- task_folds_delete: the folds of a task that has expired
delete from task_folds where task_id = :task_id;
