-- versions_get: what is known of one version
select * from versions where agent = :agent and workflow = :workflow and version = :version;

-- versions_put: a version as this worker knows it
insert into versions (agent, workflow, version, steps, fingerprint, on_cancel, on_failure, seen_at)
values (:agent, :workflow, :version, :steps, :fingerprint, :on_cancel, :on_failure,
        (select now from clock))
on conflict (agent, workflow, version) do update
   set steps = excluded.steps, fingerprint = excluded.fingerprint,
       on_cancel = excluded.on_cancel, on_failure = excluded.on_failure,
       seen_at = excluded.seen_at;

-- versions_list: all versions of an agent
select * from versions where agent = :agent order by workflow, version;

-- versions_unfinished: whether any task is in flight on a version
select exists (select 1 from tasks
                where agent = :agent and workflow = :workflow and version = :version
                  and state in ('submitted', 'working', 'input-required', 'auth-required'))
       as in_flight;
