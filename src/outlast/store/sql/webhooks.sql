-- webhooks_delete: the configs of a task that has expired, with their secrets
delete from webhooks where task_id = :task_id;

-- webhooks_fence_off: ends every lease of a webhook, past any fence of a lost future
update webhooks
   set fence = fence + :past, lease_owner = null,
       due_at = case when lease_owner is null then due_at else (select now from clock) end;
