-- store_get: what is true of the whole store
select epoch, schema_version, readable_from, clock_offset, swept_at, (select now from clock) as now
  from store;

-- store_move_clock: moves the clock of timers and deadlines, and the last sweep with it
update store set clock_offset = clock_offset + :by, swept_at = swept_at + :by;

-- store_sweep: notes that a sweep runs now, to the nearest ten seconds: the row is read by every statement
update store set swept_at = (select now from clock)
 where swept_at is null or swept_at < (select now from clock) - 10000;

-- store_sweep_due: the last sweep, if it was longer than :gap ago, locked for the one that handles it
select swept_at, (select now from clock) as now from store
 where swept_at is not null and (select now from clock) - swept_at > :gap;

-- tombstones_find: whether a task of this scope has expired
select expired_at from tombstones
 where task_id = :task_id and agent = :agent and tenant = :tenant and owner = :owner;

-- store_begin_epoch: names of the time before mean nothing from now on
update store set epoch = :epoch returning epoch, (select now from clock) as now;
