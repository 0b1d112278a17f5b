"""The suite itself: nothing of the protocols is left out, on no database.

For every verb there is a class, `TestTakeOver` for `take_over`, and every sentence of the verb's
docstring stands in the docstring of one of its tests. Whoever changes what a verb promises changes
the test of that promise with it.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import pytest

from outlast.model.commit import Write
from outlast.model.errors import StoreUnavailable
from outlast.model.ids import Fence, LedgerId, Millis, Seq, TaskId, WorkerId, WriteNo
from outlast.model.lease import Death
from outlast.model.ledger import LedgerKind
from outlast.model.task import Fold
from outlast.store import protocols
from outlast.store.access import Access
from outlast.store.admin import Admin
from outlast.store.beats import Beats
from outlast.store.inspect import Inspect
from outlast.store.log import Log
from outlast.store.sweeping import Sweeping
from outlast.store.tasks import Tasks
from outlast.store.webhooks import Webhooks
from outlast.store.work import Work
from tests.contract.stores import (
    SCOPE,
    Paused,
    Store,
    answer_to,
    entry,
    new_key,
    new_task,
    new_webhook,
    new_worker,
    to_inbox,
)

IMPLEMENTATIONS: dict[type, type] = {
    protocols.TaskStore: Tasks,
    protocols.WebhookStore: Webhooks,
    protocols.LogStore: Log,
    protocols.WorkStore: Work,
    protocols.BeatStore: Beats,
    protocols.SweepStore: Sweeping,
    protocols.AdminStore: Admin,
    protocols.InspectStore: Inspect,
    protocols.AccessStore: Access,
}
FILES = {
    "TaskStore": "test_task_store",
    "WebhookStore": "test_webhook_store",
    "LogStore": "test_log_store",
    "WorkStore": "test_work_store",
    "BeatStore": "test_beat_store",
    "SweepStore": "test_sweep_store",
    "AdminStore": "test_admin_store",
    "InspectStore": "test_inspect_store",
    "AccessStore": "test_access_store",
}
OWN_FILES = {"commit": "test_commit"}


def verbs_of(owner: type) -> list[str]:
    return sorted(
        name
        for name, member in vars(owner).items()
        if not name.startswith("_") and inspect.isfunction(member)
    )


ALL_VERBS = [(protocol, verb) for protocol in IMPLEMENTATIONS for verb in verbs_of(protocol)]
every_verb = pytest.mark.parametrize(
    ("protocol", "verb"), ALL_VERBS, ids=[f"{owner.__name__}-{verb}" for owner, verb in ALL_VERBS]
)


def module_of(protocol: type, verb: str) -> ModuleType:
    return importlib.import_module(
        f"tests.contract.{OWN_FILES.get(verb, FILES[protocol.__name__])}"
    )


def suite_of(protocol: type, verb: str) -> dict[str, Callable[..., object]]:
    name = "Test" + "".join(word.capitalize() for word in verb.split("_"))
    found = getattr(module_of(protocol, verb), name, None)
    assert found is not None, f"the suite has no class {name}"
    return {key: test for key, test in vars(found).items() if key.startswith("test_")}


def words(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").strip()


def sentences(text: str | None) -> list[str]:
    return [sentence for sentence in re.split(r"(?<=\.)\s+(?=[A-Z`\"])", words(text)) if sentence]


def test_every_protocol_of_the_module_is_in_the_suite() -> None:
    found = {
        member
        for member in vars(protocols).values()
        if inspect.isclass(member)
        and member.__module__ == protocols.__name__
        and getattr(member, "_is_protocol", False)
    }
    assert found == set(IMPLEMENTATIONS)
    assert {protocol.__name__ for protocol in found} == set(FILES)


@every_verb
def test_every_verb_has_a_class_of_tests(protocol: type[object], verb: str) -> None:
    assert suite_of(protocol, verb)


@every_verb
def test_every_sentence_of_a_docstring_has_its_test(protocol: type, verb: str) -> None:
    said = [words(test.__doc__) for test in suite_of(protocol, verb).values()]
    promised = sentences(getattr(protocol, verb).__doc__)
    assert promised
    untested = [s for s in promised if not any(s in text for text in said)]
    assert untested == []


@every_verb
def test_every_test_of_a_verb_runs_on_every_database(protocol: type, verb: str) -> None:
    for name, test in suite_of(protocol, verb).items():
        assert {"store", "empty_store"} & set(inspect.signature(test).parameters), name


@pytest.mark.parametrize("protocol", list(IMPLEMENTATIONS), ids=lambda owner: str(owner.__name__))
def test_an_implementation_has_exactly_the_verbs_of_its_protocol(protocol: type) -> None:
    implementation = IMPLEMENTATIONS[protocol]
    assert verbs_of(implementation) == verbs_of(protocol)
    for verb in verbs_of(protocol):
        promised = inspect.signature(getattr(protocol, verb))
        assert inspect.signature(getattr(implementation, verb)) == promised, verb


class TestEveryVerb:
    """The docstring of the module `protocols`."""

    async def test_may_raise_store_unavailable(self, store: Store) -> None:
        """Every verb may raise StoreUnavailable; `happened` is False where nothing was sent."""
        other = await store.another()
        await other.database.close()
        for _, verb in ALL_VERBS:
            with pytest.raises(StoreUnavailable) as caught:
                await _call(other, verb)
            assert caught.value.happened is False, verb


async def _call(store: Store, verb: str) -> object:
    task, worker, ledger = TaskId("t"), WorkerId("w"), LedgerId("t")
    paused = Paused(task, ledger, Seq(1), "1:ask")
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "create": lambda: store.tasks.create(new_task()),
        "reply": lambda: store.tasks.reply(SCOPE, "key", "digest", {}),
        "recall": lambda: store.tasks.recall(SCOPE, "key", "digest"),
        "answer": lambda: store.tasks.answer(answer_to(paused)),
        "receive": lambda: store.tasks.receive(to_inbox(task)),
        "authorize": lambda: store.tasks.authorize(SCOPE, task, Seq(1), "token"),
        "cancel": lambda: store.tasks.cancel(SCOPE, task),
        "get": lambda: store.tasks.get(SCOPE, task),
        "snapshot": lambda: store.tasks.snapshot(SCOPE, task),
        "status_of": lambda: store.tasks.status_of(SCOPE, task),
        "page": lambda: store.tasks.page(SCOPE, protocols.Wanted(), limit=1),
        "add_webhook": lambda: store.webhooks.add_webhook(SCOPE, task, new_webhook()),
        "webhook": lambda: store.webhooks.webhook(SCOPE, task, "one"),
        "webhooks": lambda: store.webhooks.webhooks(SCOPE, task, limit=1),
        "remove_webhook": lambda: store.webhooks.remove_webhook(SCOPE, task, "one"),
        "events_since": lambda: store.log.events_since(task, Seq(0)),
        "event": lambda: store.log.event(task, Seq(1)),
        "ends_of": lambda: store.log.ends_of([task]),
        "messages": lambda: store.log.messages(task),
        "received": lambda: store.log.received(task, after=Seq(0)),
        "artifact_events": lambda: store.log.artifact_events(task, after=Seq(0), until=Seq(9)),
        "register": lambda: store.work.register(new_worker()),
        "claim": lambda: store.claim(),
        "commit": lambda: store.work.commit(
            [Write(task_id=task, ledger_id=ledger, fence=Fence(1), write_no=WriteNo(0))]
        ),
        "settle": lambda: store.work.settle(ledger, "key", "1"),
        "entry": lambda: store.work.entry(ledger, "key"),
        "entries": lambda: store.work.entries(ledger, "a", "b"),
        "open_intents": lambda: store.work.open_intents(ledger, LedgerKind.EFFECT),
        "leased_to": lambda: store.work.leased_to(worker),
        "sign_off": lambda: store.work.sign_off(worker),
        "beat": lambda: store.beats.beat(worker, presence=None),
        "release": lambda: store.beats.release(worker, task, Fence(1)),
        "vitals": lambda: store.sweeping.vitals(),
        "take_over": lambda: store.sweeping.take_over(Death(worker_id=worker, beat=1, early=False)),
        "free_orphans": lambda: store.sweeping.free_orphans(),
        "end_overdue_pauses": lambda: store.sweeping.end_overdue_pauses(),
        "remind_of_pauses": lambda: store.sweeping.remind_of_pauses(),
        "end_overdue_lives": lambda: store.sweeping.end_overdue_lives(),
        "excuse_outage": lambda: store.sweeping.excuse_outage(longest=Millis(1), gap=Millis(1)),
        "expire_tasks": lambda: store.sweeping.expire_tasks(),
        "forget_expired": lambda: store.sweeping.forget_expired(older_than=Millis(1)),
        "forget_replies": lambda: store.sweeping.forget_replies(older_than=Millis(1)),
        "unfolded": lambda: store.sweeping.unfolded(),
        "to_fold": lambda: store.sweeping.to_fold(task),
        "keep_fold": lambda: store.sweeping.keep_fold(
            task, Fold(seq=Seq(1), packed=b""), fence=Fence(0), next_at=1
        ),
        "trim_logs": lambda: store.sweeping.trim_logs(),
        "put_off_fold": lambda: store.sweeping.put_off_fold(task, events=1),
        "forget_workers": lambda: store.sweeping.forget_workers(older_than=Millis(1)),
        "migrate": lambda: store.admin.migrate(),
        "check": lambda: store.admin.check(),
        "restored": lambda: store.admin.restored(),
        "move_clock": lambda: store.admin.move_clock(Millis(1)),
        "next_due": lambda: store.admin.next_due(),
        "unhold": lambda: store.admin.unhold(task),
        "resolve": lambda: store.admin.resolve(
            task, "key", fence=Fence(1), write_no=WriteNo(1), result=None
        ),
        "find": lambda: store.inspect.find(task),
        "checkpoint": lambda: store.inspect.checkpoint(task),
        "versions": lambda: store.inspect.versions("agent"),
        "runs": lambda: store.inspect.runs(task),
        "held": lambda: store.inspect.held("agent"),
        "in_flight": lambda: store.inspect.in_flight("agent"),
        "workers": lambda: store.inspect.workers(),
        "effects": lambda: store.inspect.effects(),
        "create_key": lambda: store.access.create_key(new_key(), source="here"),
        "valid_key": lambda: store.access.valid_key("agent", "digest"),
        "keys": lambda: store.access.keys("agent"),
        "revoke_key": lambda: store.access.revoke_key("agent", "key", source="here"),
        "note": lambda: store.access.note(entry()),
        "audit": lambda: store.access.audit("agent"),
        "broken_laws": lambda: store.inspect.broken_laws(),
    }
    return await calls[verb]()
