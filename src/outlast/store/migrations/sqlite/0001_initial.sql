-- The whole schema of the store. Times are milliseconds since the Unix epoch, by `clock`.

-- One row: what is true of the whole store.
create table store (
    singleton      integer primary key default 1 constraint store_has_one_row check (singleton = 1),
    -- Changed when commits may have been lost: clients of a lost future get a reset.
    epoch          text not null,
    schema_version integer not null,
    -- The oldest schema version whose binaries may still use this store.
    readable_from  integer not null,
    -- Moves the one clock of timers and deadlines; zero but in tests and demos.
    clock_offset   integer not null default 0,
    -- When a sweep last ran: a long gap is an outage, and deadlines move by it.
    swept_at       integer
) strict;

-- The only time that timers and deadlines are compared with.
create view clock as
    select cast((julianday('now') - 2440587.5) * 86400000 as integer) + clock_offset as now from store;

-- One A2A task each; the row that every writer takes first.
create table tasks (
    task_id             text primary key,
    agent               text not null,
    tenant              text not null,
    owner               text not null,
    context_id          text not null,
    workflow            text not null,
    version             integer not null,
    state               text not null,
    -- The status that clients see, as JSON, without its time.
    status              text not null,
    status_at           integer not null,
    step                text not null,
    -- How often the task arrived at a step; rises with every change of step.
    visit               integer not null,
    -- All that the next step needs, as JSON; null before the first commit.
    checkpoint          text,
    -- The worker that runs the task; null when nobody does.
    lease_owner         text,
    -- Raised by every grant of a lease and every write that ends one.
    fence               integer not null default 0,
    -- How many writes the run has made under this fence.
    write_no            integer not null default 0,
    -- The number of the next or current attempt at the step; set back by a commit.
    attempt             integer not null default 1,
    -- Proven deaths of workers within the step; set back by a commit.
    crashes             integer not null default 0,
    -- Lower runs first.
    priority            integer not null default 0,
    -- Claimable from then on; null when leased, paused, held or finished.
    ready_at            integer,
    -- The seq of the next event: the generation is one less.
    next_seq            integer not null,
    -- The seq of the last message that came while the task worked; 0: none came.
    inbox_seq           integer not null default 0,
    -- Up to where commits have read such messages.
    read_seq            integer not null default 0,
    -- Where the log ended at the last commit: later chunks are provisional.
    commit_seq          integer not null default 0,
    -- The seq of the question that the task waits for.
    pause_id            integer,
    pause_deadline_at   integer,
    remind_at           integer,
    -- The end of the longest life of the task.
    give_up_at          integer not null,
    expires_at          integer,
    -- The length of the log from which its next fold is due; null: due now.
    fold_at             integer default 256,
    -- When the log of a finished task may be trimmed; null once it is, or while no fold holds it.
    trim_at             integer,
    -- The log is gone up to here: its newest fold holds it.
    trimmed_seq         integer not null default 0,
    cancel_requested_at integer,
    -- How the task will end once its cancel or failure step has run, as JSON.
    ending_as           text,
    -- Why an operator must look; never claimed until unheld.
    held_reason         text,
    -- The ledger of the work that this task does or continues.
    ledger_id           text not null,
    metadata            text not null,
    trace               text,
    created_at          integer not null,
    updated_at          integer not null,
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
) strict;

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

-- The log: what each task emitted, in order, without a gap. Rows never change.
create table task_events (
    task_id    text not null,
    seq        integer not null,
    -- The fence of the writer: along seq it never falls.
    fence      integer not null,
    -- The number of the worker's write; null for gateways and sweeps.
    write_no   integer,
    n          integer not null default 0,
    kind       text not null,
    body       text not null,
    is_message integer not null default 0,
    created_at integer not null,
    primary key (task_id, seq),
    constraint one_write_has_its_numbers_once unique (task_id, fence, write_no, n),
    constraint seq_begins_at_one check (seq >= 1)
) strict;
create index task_messages on task_events (task_id, seq) where is_message;

-- What happened under each lease; what operators read.
create table task_runs (
    task_id        text not null,
    fence          integer not null,
    worker_id      text not null,
    step           text not null,
    attempt        integer not null,
    started_at     integer not null,
    ended_at       integer,
    -- The run's own write that ended it; null when somebody else did.
    ended_write_no integer,
    outcome        text,
    error          text,
    primary key (task_id, fence)
) strict;

-- What a task has already got from outside, by key.
create table task_ledger (
    ledger_id text not null,
    key       text not null,
    kind      text not null,
    request   text,
    digest    text,
    fence     integer not null,
    -- With fence: which call the open intent belongs to.
    write_no  integer not null,
    intent_at integer not null,
    result    text,
    done_at   integer,
    primary key (ledger_id, key),
    constraint what_is_done_has_a_result check ((done_at is null) = (result is null))
) strict;

-- The Task folded up to seq: a cache, dropping it loses nothing.
create table task_folds (
    task_id text not null,
    seq     integer not null,
    task    blob not null,
    primary key (task_id, seq)
) strict;

-- Push notification configs and how far each was served.
create table webhooks (
    task_id      text not null,
    config_id    text not null,
    url          text not null,
    secrets      text,
    filter       text,
    cursor       integer not null default 0,
    pinned_seq   integer,
    due_at       integer,
    attempt      integer not null default 0,
    lease_owner  text,
    fence        integer not null default 0,
    last_error   text,
    exhausted_at integer,
    created_at   integer not null,
    primary key (task_id, config_id)
) strict;
create index webhooks_due on webhooks (due_at) where due_at is not null and lease_owner is null;
create index webhooks_leased on webhooks (lease_owner) where lease_owner is not null;

-- One row per send, so that a repeat finds the first.
create table send_keys (
    agent      text not null,
    tenant     text not null,
    owner      text not null,
    key        text not null,
    task_id    text,
    digest     text not null,
    reply      text,
    created_at integer not null,
    primary key (agent, tenant, owner, key)
) strict;
create index send_keys_aged on send_keys (created_at) where task_id is null;
create index send_keys_of_task on send_keys (task_id) where task_id is not null;

-- Who works here. A worker is dead when a watcher has proved it.
create table workers (
    worker_id   text primary key,
    agent       text not null,
    -- The machine and the process id, as host/pid.
    host        text not null,
    beat        integer not null default 0,
    beat_ms     integer not null,
    lease_ms    integer not null,
    versions    text not null,
    -- The server incarnation under which presence was taken; null without presence.
    presence    text,
    started_at  integer not null,
    seen_at     integer not null,
    dead_at     integer,
    -- It left by itself: what it still leased is no crash.
    signed_off  integer not null default 0,
    -- Declared dead with its presence free: the process is gone, not only frozen.
    is_gone     integer not null default 0
) strict;
create index workers_alive on workers (worker_id) where dead_at is null;

-- The workflows that workers have run, with their lists of steps.
create table versions (
    agent       text not null,
    workflow    text not null,
    version     integer not null,
    steps       text not null,
    fingerprint text not null,
    -- Whether a cancel must run a step before the task ends.
    on_cancel   integer not null default 0,
    -- Whether a failure must run a step before the task ends.
    on_failure  integer not null default 0,
    seen_at     integer not null,
    primary key (agent, workflow, version)
) strict;

-- Tasks that expired, so that their owners can be told.
create table tombstones (
    task_id    text primary key,
    agent      text not null,
    tenant     text not null,
    owner      text not null,
    expired_at integer not null,
    -- Some of the log is still to be deleted.
    log_left   integer not null default 0
) strict;
create index tombstones_with_log on tombstones (task_id) where log_left;
create index tombstones_aged on tombstones (expired_at);

-- The credentials of callers that are programs, by the hash of their text.
create table api_keys (
    -- The first digits of the hash: what people call the key.
    key_id     text primary key,
    agent      text not null,
    digest     text not null constraint a_key_is_known_once unique,
    name       text not null,
    owner      text not null constraint a_key_has_an_owner check (owner <> ''),
    -- Null: the key is of no tenant.
    tenant     text,
    -- A JSON array of texts.
    scopes     text not null,
    created_at integer not null,
    expires_at integer,
    revoked_at integer
) strict;

-- What happened at the door; never a secret.
create table audit (
    audit_id text primary key,
    at       integer not null,
    agent    text not null,
    kind     text not null,
    subject  text not null,
    tenant   text not null,
    source   text not null,
    detail   text not null
) strict;
create index audit_aged on audit (at);

insert into store (epoch, schema_version, readable_from)
    values (lower(hex(randomblob(6))), 1, 1);
