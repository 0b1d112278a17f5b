-- send_keys_claim: the key of a send, if nobody had it
insert into send_keys (agent, tenant, owner, key, task_id, digest, reply, created_at)
values (:agent, :tenant, :owner, :key, :task_id, :digest, :reply, (select now from clock))
on conflict (agent, tenant, owner, key) do nothing
returning key;

-- send_keys_get: what a key already stands for
select task_id, digest, reply, created_at from send_keys
 where agent = :agent and tenant = :tenant and owner = :owner and key = :key;
