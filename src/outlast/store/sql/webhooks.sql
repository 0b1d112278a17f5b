-- webhooks_put: a webhook, or another one in the place of what its id stood for, to be served anew
-- Nothing is due: who sends does not exist yet, and what is due keeps its task from expiring.
insert into webhooks (task_id, config_id, url, secrets, pinned_seq, created_at)
values (:task_id, :config_id, :url, :secrets, :pinned_seq, (select now from clock))
on conflict (task_id, config_id) do update
   set url = excluded.url, secrets = excluded.secrets, pinned_seq = excluded.pinned_seq,
       cursor = 0, due_at = null, attempt = 0, lease_owner = null, fence = webhooks.fence + 1,
       last_error = null, exhausted_at = null;

-- webhooks_get: one webhook of a task
select * from webhooks where task_id = :task_id and config_id = :config_id;

-- webhooks_page: the webhooks of a task after :after_id, in the order of ids
select * from webhooks
 where task_id = :task_id and config_id > :after_id order by config_id limit :n;

-- webhooks_remove: forgets one webhook, with its secrets
delete from webhooks where task_id = :task_id and config_id = :config_id;

-- webhooks_delete: the configs of a task that has expired, with their secrets
delete from webhooks where task_id = :task_id;

-- webhooks_fence_off: ends every lease of a webhook, past any fence of a lost future
update webhooks
   set fence = case when fence + :past > :beyond then fence + :past else :beyond end, lease_owner = null,
       due_at = case when lease_owner is null then due_at else (select now from clock) end;
