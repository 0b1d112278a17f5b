-- workers_register: a new worker with its first beat; nothing when its row is there already
insert into workers (worker_id, agent, host, beat, beat_ms, lease_ms, versions, presence,
                     started_at, seen_at)
select :worker_id, :agent, :host, 1, :beat_ms, :lease_ms, :versions, :presence, now, now
  from clock where true
on conflict (worker_id) do nothing;

-- workers_beat: one more beat of a worker that nobody has declared dead
update workers set beat = beat + 1, seen_at = (select now from clock), presence = :presence
 where worker_id = :worker_id and dead_at is null
returning beat;

-- workers_alive: everybody's vitals
select worker_id, beat, beat_ms, lease_ms, presence, host, agent, versions, seen_at
  from workers where dead_at is null order by worker_id limit :n;

-- workers_bury: declares a worker dead where its beat is still the one seen
update workers set dead_at = (select now from clock), is_gone = :is_gone
 where worker_id = :worker_id and beat = :beat and dead_at is null
returning worker_id;

-- workers_sign_off: a worker leaves; nothing can be claimed for it any more
update workers set dead_at = (select now from clock), signed_off = true
 where worker_id = :worker_id and dead_at is null
returning worker_id;

-- workers_forget: rows of the long dead that lease nothing
delete from workers
 where worker_id in (
        select worker_id from workers
         where dead_at is not null and dead_at < (select now from clock) - :age
           and not exists (select 1 from tasks where lease_owner = workers.worker_id)
           and not exists (select 1 from webhooks where lease_owner = workers.worker_id)
         order by worker_id limit :n);

-- workers_bury_all: nobody who worked here before does any more
update workers set dead_at = (select now from clock) where dead_at is null returning worker_id;
