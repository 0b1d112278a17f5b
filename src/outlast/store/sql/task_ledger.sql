-- task_ledger_intend: the intent of a call, taking over one that is open; nothing where a result is
insert into task_ledger (ledger_id, key, kind, request, digest, fence, write_no, intent_at)
values (:ledger_id, :key, :kind, :request, :digest, :fence, :write_no, (select now from clock))
on conflict (ledger_id, key) do update
   set fence = excluded.fence, write_no = excluded.write_no, intent_at = excluded.intent_at
 where task_ledger.done_at is null
returning key;

-- task_ledger_settle: a result where none is recorded yet: the one write that needs no fence
update task_ledger set result = :result, done_at = (select now from clock)
 where ledger_id = :ledger_id and key = :key and done_at is null
returning key;

-- task_ledger_resolve: an operator's result for the call that left this intent, and for no other
update task_ledger set result = :result, done_at = (select now from clock)
 where ledger_id = :ledger_id and key = :key and fence = :fence and write_no = :write_no
   and done_at is null
returning key;

-- task_ledger_keep: a value computed here, intent and result in one; the first one stays
insert into task_ledger (ledger_id, key, kind, digest, fence, write_no, intent_at, result, done_at)
values (:ledger_id, :key, :kind, :digest, :fence, :write_no, (select now from clock), :result,
        (select now from clock))
on conflict (ledger_id, key) do update
   set result = excluded.result, done_at = excluded.done_at
 where task_ledger.done_at is null;

-- task_ledger_clear: forgets an intent whose call did not happen, if it is still that call's own
delete from task_ledger
 where ledger_id = :ledger_id and key = :key and fence = :fence and write_no = :write_no
   and done_at is null
returning key;

-- task_ledger_get: one entry
select * from task_ledger where ledger_id = :ledger_id and key = :key;

-- task_ledger_page: entries with keys in [:first, :last), in order
select * from task_ledger
 where ledger_id = :ledger_id and key >= :first and key < :last order by key limit :n;

-- task_ledger_open: intents without a result
select * from task_ledger where ledger_id = :ledger_id and kind = :kind and done_at is null
 order by key;

-- task_ledger_delete: a ledger that no task names any more
delete from task_ledger where ledger_id = :ledger_id;
