-- api_keys_create: a key, by the hash of its text
insert into api_keys (key_id, agent, digest, name, owner, tenant, scopes, created_at, expires_at)
values (:key_id, :agent, :digest, :name, :owner, :tenant, :scopes,
        (select now from clock), :lasts + (select now from clock))
on conflict (digest) do nothing
returning key_id;

-- api_keys_get: the key of this hash, valid or not
select key_id, name, owner, tenant, scopes, created_at, expires_at, revoked_at from api_keys
 where digest = :digest and agent = :agent;

-- api_keys_valid: the key of this hash, unless it has expired or is revoked
select key_id, name, owner, tenant, scopes, created_at, expires_at, revoked_at from api_keys
 where digest = :digest and agent = :agent and revoked_at is null
   and (expires_at is null or expires_at > (select now from clock));

-- api_keys_list: every key of an agent, the newest first
select key_id, name, owner, tenant, scopes, created_at, expires_at, revoked_at from api_keys
 where agent = :agent order by created_at desc, key_id;

-- api_keys_revoke: revokes a key that is not revoked yet
update api_keys set revoked_at = (select now from clock)
 where key_id = :key_id and agent = :agent and revoked_at is null
returning name, owner, tenant;
