-- send_keys_claim: the key of a send, if nobody had it
insert into send_keys (agent, tenant, owner, key, task_id, digest, reply, created_at)
values (:agent, :tenant, :owner, :key, :task_id, :digest, :reply, (select now from clock))
on conflict (agent, tenant, owner, key) do nothing
returning key;

-- send_keys_get: what a key already stands for
select task_id, digest, reply, created_at from send_keys
 where agent = :agent and tenant = :tenant and owner = :owner and key = :key;

-- send_keys_delete: the keys of a task that nobody is told of any more
delete from send_keys where task_id = :task_id;

-- send_keys_forget: the keys of direct Messages that are older than :age
delete from send_keys
 where (agent, tenant, owner, key) in (
        select agent, tenant, owner, key from send_keys
         where task_id is null and created_at < (select now from clock) - :age
         order by created_at limit :n);
