"""Tells what happened, in words and numbers; each number comes out of the account."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table

from examples.access_review.account import Account, Run

_MS = timedelta(milliseconds=1)


def tell(account: Account, *, database: str, report: Sequence[Path]) -> RenderableType:
    """The account for people: the story, the calls one by one, and the checker's word on it."""
    story = Table.grid(padding=(0, 2))
    story.add_column(style="bold", no_wrap=True)
    story.add_column()
    for label, text in _story(account, database, report):
        story.add_row(label, text)
    return Group(
        Rule("[bold]What happened[/]"),
        story,
        "",
        "[bold]Fetch calls per system[/], as the directory counted them",
        Columns(_fetches(account), equal=True, column_first=True, padding=(0, 3)),
        "",
        "[bold]Revocation calls per grant[/], as the directory counted them",
        Columns(_revocations(account), equal=True, column_first=True, padding=(0, 3)),
        "",
        _verdict(account),
    )


def _story(account: Account, database: str, report: Sequence[Path]) -> Iterator[tuple[str, str]]:
    yield (
        "The review",
        f"Task {account.task.task_id} on {database} is {account.task.state.value}:"
        f" {escape(account.last_words)}.",
    )
    yield "The kill", _kill(account)
    yield "The take-over", _take_over(account)
    yield (
        "The fetches",
        f"{account.fetch_calls} calls for {len(account.counters.fetches)} systems; again:"
        f" {', '.join(account.fetched_again) or 'none'}.",
    )
    yield "The caller", _caller(account)
    yield "The question", _question(account)
    yield "The network", _network(account)
    yield "The revocations", _revoked(account)
    yield "The report", "\n".join(map(str, report)) or "There is none."


def _kill(account: Account) -> str:
    run = account.killed_run
    kept = account.fetched_under(run)
    return (
        f"kill -9 {_pid(account, run)}, within the fetch of system {len(kept) + 1},"
        f" {account.witness.struck}. The worker had committed the {len(kept)} before it."
    )


def _take_over(account: Account) -> str:
    run, after = account.next_run, account.take_over
    if run is None or after is None:
        return "Nobody took over."
    went_on_with = next(iter(account.fetched_under(run)), "nothing")
    return (
        f"The worker with pid {_pid(account, run)} claimed the review {after // _MS:,} ms after the"
        f" kill and went on with {went_on_with}. (A process that dies lets go of its lock: free"
        " twice, a second apart, with the beat unmoved for two, it proves the death. Without it,"
        " the lease would have to run out.)"
    )


def _caller(account: Account) -> str:
    missed = "none missing and none twice" if not account.unseen else "and not as it should be"
    return (
        f"Saw events 1 … {account.witness.seen[-1].generation} of {account.task.generation},"
        f" {missed}, over {account.streams} streams: {account.seen_one_by_one} one by one, and"
        f" {account.seen_inside_tasks} inside the Task that each stream opened with."
    )


def _question(account: Account) -> str:
    asked, answered = account.asked_at, account.answered_at
    if asked is None or answered is None:
        return "It was not asked, or not answered."
    return (
        f"Asked {_time(asked)} and answered {_time(answered)} by the store's clock:"
        f" {timedelta(seconds=round((answered - asked).total_seconds()))} later."
    )


def _network(account: Account) -> str:
    waits = " and ".join(f"{delay / timedelta(seconds=1):.1f} s" for delay in account.retried_after)
    return (
        f"Failed when {account.revoked_before_failure} of {len(account.effects)} revocations were"
        f" known to be done. The step failed {len(account.failed_runs)} times and was tried again"
        f" after {waits or 'no time'}."
    )


def _revoked(account: Account) -> str:
    keys = account.counters.applied_by_key
    times = "once each" if set(keys.values()) == {1} else f"{sum(keys.values())} times"
    return (
        f"{account.revoke_calls} calls under {len(account.counters.revoke_calls)} keys; applied"
        f" under {len(keys)} keys, {times}."
    )


def _fetches(account: Account) -> Iterator[str]:
    for system in account.witness.systems:
        yield _counted(system, f"{account.counters.fetches.get(system, 0)}", expected="1")


def _revocations(account: Account) -> Iterator[str]:
    counters = account.counters
    for grant in account.witness.approved:
        key = account.revoke_key(grant)
        calls, applied = counters.revoke_calls.get(key, 0), counters.applied_by_key.get(key, 0)
        yield _counted(grant, f"{calls}, applied {applied}", expected="1, applied 1")


def _counted(name: str, count: str, *, expected: str) -> str:
    return f"{name} {count}" if count == expected else f"[yellow]{name} {count}[/]"


def _verdict(account: Account) -> RenderableType:
    if not account.broken:
        return "[bold green]The checker found nothing lost and nothing doubled.[/]"
    found = "\n".join(escape(str(finding)) for finding in account.broken)
    return Panel(found, title="[bold red]The checker found[/]", border_style="red")


def _pid(account: Account, run: Run | None) -> str:
    return "?" if run is None else str(account.witness.pids.get(run.worker_id, run.worker_id))


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"
