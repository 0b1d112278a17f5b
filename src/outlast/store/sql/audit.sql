-- audit_note: one thing that happened at the door
insert into audit (audit_id, at, agent, kind, subject, tenant, source, detail)
values (:audit_id, (select now from clock), :agent, :kind, :subject, :tenant, :source, :detail)
on conflict (audit_id) do nothing;

-- audit_trim: some of what is older than :age is forgotten, so that the table ends somewhere
delete from audit where audit_id in
    (select audit_id from audit where at < (select now from clock) - :age order by at limit :n);

-- audit_read: the latest entries of an agent
select at, kind, subject, tenant, source, detail from audit
 where agent = :agent order by at desc, audit_id desc limit :n;
