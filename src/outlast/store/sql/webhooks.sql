-- webhooks_delete: the configs of a task that has expired, with their secrets
delete from webhooks where task_id = :task_id;
