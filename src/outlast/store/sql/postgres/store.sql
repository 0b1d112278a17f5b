-- store_sweep_due: the last sweep, if it was longer than :gap ago, locked for the one that handles it
-- differs: PostgreSQL locks rows, so that two sweeps do not both move the deadlines
select swept_at, (select now from clock) as now from store
 where swept_at is not null and (select now from clock) - swept_at > :gap
   for update of store;
