-- The whole schema of the store. Times are milliseconds since the Unix epoch, by `clock`.

create table store (
    singleton      integer primary key default 1 constraint store_has_one_row check (singleton = 1),
    epoch          text not null,
    schema_version integer not null,
    readable_from  integer not null,
    clock_offset   bigint not null default 0,
    swept_at       bigint
);
comment on table store is 'One row: what is true of the whole store.';
comment on column store.epoch is 'Changed when commits may have been lost: clients of a lost future get a reset.';
comment on column store.readable_from is 'The oldest schema version whose binaries may still use this store.';
comment on column store.clock_offset is 'Moves the one clock of timers and deadlines; zero but in tests and demos.';
comment on column store.swept_at is 'When a sweep last ran: a long gap is an outage, and deadlines move by it.';

create view clock as
    select (extract(epoch from clock_timestamp()) * 1000)::bigint + clock_offset as now from store;
comment on view clock is 'The only time that timers and deadlines are compared with.';

create table tasks (
    task_id             text primary key,
    agent               text not null,
    tenant              text not null,
    owner               text not null,
    context_id          text not null,
    workflow            text not null,
    version             integer not null,
    state               text not null,
    status              text not null,
    status_at           bigint not null,
    step                text not null,
    visit               bigint not null,
    checkpoint          text,
    lease_owner         text,
    fence               bigint not null default 0,
    write_no            bigint not null default 0,
    attempt             integer not null default 1,
    crashes             integer not null default 0,
    priority            integer not null default 0,
    ready_at            bigint,
    next_seq            bigint not null,
    inbox_seq           bigint not null default 0,
    read_seq            bigint not null default 0,
    commit_seq          bigint not null default 0,
    pause_id            bigint,
    pause_deadline_at   bigint,
    remind_at           bigint,
    give_up_at          bigint not null,
    expires_at          bigint,
    fold_at             bigint default 256,
    trim_at             bigint,
    trimmed_seq         bigint not null default 0,
    cancel_requested_at bigint,
    ending_as           text,
    held_reason         text,
    ledger_id           text not null,
    metadata            text not null,
    trace               text,
    created_at          bigint not null,
    updated_at          bigint not null,
    constraint task_state_is_known check (state in ('submitted', 'working', 'input-required',
        'auth-required', 'completed', 'failed', 'canceled', 'rejected')),
    constraint a_paused_task_has_a_pause check
        ((pause_id is not null) = (state in ('input-required', 'auth-required'))),
    constraint a_paused_task_has_a_deadline check (pause_id is null or pause_deadline_at is not null),
    constraint a_leased_task_is_not_ready check (lease_owner is null or ready_at is null),
    constraint a_finished_task_is_at_rest check
        (state not in ('completed', 'failed', 'canceled', 'rejected')
         or (lease_owner is null and ready_at is null and held_reason is null)),
    constraint a_held_task_is_at_rest check
        (held_reason is null or (lease_owner is null and ready_at is null and pause_id is null))
);
comment on table tasks is 'One A2A task each; the row that every writer takes first.';
comment on column tasks.status is 'The status that clients see, as JSON, without its time.';
comment on column tasks.visit is 'How often the task arrived at a step; rises with every change of step.';
comment on column tasks.checkpoint is 'All that the next step needs, as JSON; null before the first commit.';
comment on column tasks.lease_owner is 'The worker that runs the task; null when nobody does.';
comment on column tasks.fence is 'Raised by every grant of a lease and every write that ends one.';
comment on column tasks.write_no is 'How many writes the run has made under this fence.';
comment on column tasks.attempt is 'The number of the next or current attempt at the step; set back by a commit.';
comment on column tasks.crashes is 'Proven deaths of workers within the step; set back by a commit.';
comment on column tasks.priority is 'Lower runs first.';
comment on column tasks.ready_at is 'Claimable from then on; null when leased, paused, held or finished.';
comment on column tasks.next_seq is 'The seq of the next event: the generation is one less.';
comment on column tasks.inbox_seq is 'The seq of the last message that came while the task worked; 0: none came.';
comment on column tasks.read_seq is 'Up to where commits have read such messages.';
comment on column tasks.commit_seq is 'Where the log ended at the last commit: later chunks are provisional.';
comment on column tasks.pause_id is 'The seq of the question that the task waits for.';
comment on column tasks.give_up_at is 'The end of the longest life of the task.';
comment on column tasks.ending_as is 'How the task will end once its cancel or failure step has run, as JSON.';
comment on column tasks.fold_at is 'The length of the log from which its next fold is due; null: due now.';
comment on column tasks.trim_at is 'When the log of a finished task may be trimmed; null once it is, or while no fold holds it.';
comment on column tasks.trimmed_seq is 'The log is gone up to here: its newest fold holds it.';
comment on column tasks.held_reason is 'Why an operator must look; never claimed until unheld.';
comment on column tasks.ledger_id is 'The ledger of the work that this task does or continues.';

create index tasks_ready on tasks (agent, workflow, version, tenant, priority, ready_at)
    where lease_owner is null and ready_at is not null;
create index tasks_leased on tasks (lease_owner) where lease_owner is not null;
create index tasks_pause_due on tasks (pause_deadline_at) where pause_deadline_at is not null;
create index tasks_remind_due on tasks (remind_at) where remind_at is not null;
create index tasks_give_up on tasks (give_up_at)
    where state in ('submitted', 'working', 'input-required', 'auth-required');
create index tasks_held on tasks (agent) where held_reason is not null;
create index tasks_listed on tasks (agent, tenant, owner, status_at, task_id);
create index tasks_in_flight on tasks (agent, workflow, version)
    where state in ('submitted', 'working', 'input-required', 'auth-required');
create index tasks_open on tasks (agent, tenant, owner)
    where state in ('submitted', 'working', 'input-required', 'auth-required');
create unique index one_unfinished_task_per_ledger on tasks (ledger_id)
    where state in ('submitted', 'working', 'input-required', 'auth-required');
create index tasks_of_ledger on tasks (ledger_id);
create index tasks_unfolded on tasks (task_id) where fold_at is null;
create index tasks_trimming on tasks (trim_at) where trim_at is not null;
create index tasks_expiring on tasks (expires_at) where expires_at is not null;

create table task_events (
    task_id    text not null,
    seq        bigint not null,
    fence      bigint not null,
    write_no   bigint,
    n          integer not null default 0,
    kind       text not null,
    body       text not null,
    is_message boolean not null default false,
    created_at bigint not null,
    primary key (task_id, seq),
    constraint one_write_has_its_numbers_once unique (task_id, fence, write_no, n),
    constraint seq_begins_at_one check (seq >= 1)
);
comment on table task_events is 'The log: what each task emitted, in order, without a gap. Rows never change.';
comment on column task_events.fence is 'The fence of the writer: along seq it never falls.';
comment on column task_events.write_no is 'The number of the worker''s write; null for gateways and sweeps.';
create index task_messages on task_events (task_id, seq) where is_message;

create table task_runs (
    task_id        text not null,
    fence          bigint not null,
    worker_id      text not null,
    step           text not null,
    attempt        integer not null,
    started_at     bigint not null,
    ended_at       bigint,
    ended_write_no bigint,
    outcome        text,
    error          text,
    primary key (task_id, fence)
);
comment on table task_runs is 'What happened under each lease; what operators read.';
comment on column task_runs.ended_write_no is 'The run''s own write that ended it; null when somebody else did.';

create table task_ledger (
    ledger_id text not null,
    key       text collate "C" not null,
    kind      text not null,
    request   text,
    digest    text,
    fence     bigint not null,
    write_no  bigint not null,
    intent_at bigint not null,
    result    text,
    done_at   bigint,
    primary key (ledger_id, key),
    constraint what_is_done_has_a_result check ((done_at is null) = (result is null))
);
comment on table task_ledger is 'What a task has already got from outside, by key.';
comment on column task_ledger.key is 'Compared by bytes: pages are cut at keys.';
comment on column task_ledger.write_no is 'With fence: which call the open intent belongs to.';

create table task_folds (
    task_id text not null,
    seq     bigint not null,
    task    bytea not null,
    primary key (task_id, seq)
);
comment on table task_folds is 'The Task folded up to seq: a cache, dropping it loses nothing.';

create table webhooks (
    task_id      text not null,
    config_id    text collate "C" not null,
    url          text not null,
    secrets      text,
    filter       text,
    cursor       bigint not null default 0,
    pinned_seq   bigint,
    due_at       bigint,
    attempt      integer not null default 0,
    lease_owner  text,
    fence        bigint not null default 0,
    last_error   text,
    exhausted_at bigint,
    created_at   bigint not null,
    primary key (task_id, config_id)
);
comment on table webhooks is 'Push notification configs and how far each was served.';
comment on column webhooks.config_id is 'Compared by bytes: pages are cut at ids.';
comment on column webhooks.secrets is 'The token, scheme and credentials of a delivery, as JSON.';
comment on column webhooks.pinned_seq is 'The next delivery is the Task as of this event.';
create index webhooks_due on webhooks (due_at) where due_at is not null and lease_owner is null;
create index webhooks_leased on webhooks (lease_owner) where lease_owner is not null;

create table send_keys (
    agent      text not null,
    tenant     text not null,
    owner      text not null,
    key        text not null,
    task_id    text,
    digest     text not null,
    reply      text,
    created_at bigint not null,
    primary key (agent, tenant, owner, key)
);
comment on table send_keys is 'One row per send, so that a repeat finds the first.';
create index send_keys_aged on send_keys (created_at) where task_id is null;
create index send_keys_of_task on send_keys (task_id) where task_id is not null;

create table workers (
    worker_id   text primary key,
    agent       text not null,
    host        text not null,
    beat        bigint not null default 0,
    beat_ms     bigint not null,
    lease_ms    bigint not null,
    versions    text not null,
    presence    text,
    started_at  bigint not null,
    seen_at     bigint not null,
    dead_at     bigint,
    signed_off  boolean not null default false,
    is_gone     boolean not null default false
);
comment on table workers is 'Who works here. A worker is dead when a watcher has proved it.';
comment on column workers.host is 'The machine and the process id, as host/pid.';
comment on column workers.presence is 'The server incarnation under which presence was taken; null without presence.';
comment on column workers.is_gone is 'Declared dead with its presence free: the process is gone, not only frozen.';
comment on column workers.signed_off is 'It left by itself: what it still leased is no crash.';
create index workers_alive on workers (worker_id) where dead_at is null;

create table versions (
    agent       text not null,
    workflow    text not null,
    version     integer not null,
    steps       text not null,
    fingerprint text not null,
    on_cancel   boolean not null default false,
    on_failure  boolean not null default false,
    seen_at     bigint not null,
    primary key (agent, workflow, version)
);
comment on table versions is 'The workflows that workers have run, with their lists of steps.';
comment on column versions.on_failure is 'Whether a failure must run a step before the task ends.';
comment on column versions.on_cancel is 'Whether a cancel must run a step before the task ends.';

create table tombstones (
    task_id    text primary key,
    agent      text not null,
    tenant     text not null,
    owner      text not null,
    expired_at bigint not null,
    log_left   boolean not null default false
);
comment on table tombstones is 'Tasks that expired, so that their owners can be told.';
comment on column tombstones.log_left is 'Some of the log is still to be deleted.';
create index tombstones_with_log on tombstones (task_id) where log_left;
create index tombstones_aged on tombstones (expired_at);

create table api_keys (
    key_id     text primary key,
    agent      text not null,
    digest     text not null constraint a_key_is_known_once unique,
    name       text not null,
    owner      text not null constraint a_key_has_an_owner check (owner <> ''),
    tenant     text,
    scopes     text not null,
    created_at bigint not null,
    expires_at bigint,
    revoked_at bigint
);
comment on table api_keys is 'The credentials of callers that are programs, by the hash of their text.';
comment on column api_keys.key_id is 'The first digits of the hash: what people call the key.';
comment on column api_keys.tenant is 'Null: the key is of no tenant.';
comment on column api_keys.scopes is 'A JSON array of texts.';

create table audit (
    audit_id text primary key,
    at       bigint not null,
    agent    text not null,
    kind     text not null,
    subject  text not null,
    tenant   text not null,
    source   text not null,
    detail   text not null
);
comment on table audit is 'What happened at the door; never a secret.';
create index audit_aged on audit (at);

insert into store (epoch, schema_version, readable_from)
    values (substr(md5(random()::text || clock_timestamp()::text), 1, 12), 1, 1);
