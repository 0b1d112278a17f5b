"""Security: nobody gets in without a credential, or at what is another's."""

from __future__ import annotations

import pytest

from outlast.model.ids import TaskId
from tests.cases.doors import BINDINGS, OPERATIONS, all_of, guarded
from tests.contract.stores import statements
from tests.integration.test_gateway_hand import Hand

each_binding = pytest.mark.parametrize("binding", BINDINGS)


async def bring(hand: Hand, task_id: str, state: str) -> None:
    """Bring a task of the worker's hand so far."""
    if state == "paused":
        await hand.ask(TaskId(task_id), "which?")
    elif state == "finished":
        await hand.finish(TaskId(task_id))
    else:
        await hand.report(TaskId(task_id), "under way")


@pytest.mark.parametrize("state", ["live", "paused", "finished"])
async def test_case_110_a_foreign_task_is_as_unknown_as_one_that_never_was(
    sqlite_url: str, state: str
) -> None:
    tenants = {"ann": "acme", "bob": "acme", "eve": "evil"}
    async with guarded(sqlite_url, tenants) as door:
        task_id = await door.begun("ann")
        await bring(door.gateway.hand, task_id, state)
        unknown = "0" * len(task_id)
        before = await door.gateway.log.ends_of([TaskId(task_id)])
        for other in ("bob", "eve"):
            await all_of(door, other, unknown)  # its key has been looked up by now
            with statements() as asked:
                foreign = await all_of(door, other, task_id)
            with statements() as asked_of_none:
                never = await all_of(door, other, unknown)
            assert sorted(asked) == sorted(asked_of_none)
            assert len(foreign) == 27
            for (binding, method, got), (_, _, none) in zip(foreign, never, strict=True):
                assert got.reason == none.reason != "", (binding, method)
                assert str(got).replace(task_id, unknown) == str(none), (binding, method)
                if "Push" not in method:
                    assert got.reason == "TASK_NOT_FOUND", (binding, method)
        assert await door.gateway.log.ends_of([TaskId(task_id)]) == before


@each_binding
async def test_case_113_every_operation_wants_a_credential(sqlite_url: str, binding: str) -> None:
    async with guarded(sqlite_url, {"ann": "acme"}) as door:
        task_id = await door.begun("ann")
        for operation in OPERATIONS:
            answer = await door.ask("nobody", binding, operation, task_id)
            assert answer.reason == "UNAUTHENTICATED", operation.method
            assert "ann" not in str(answer)
