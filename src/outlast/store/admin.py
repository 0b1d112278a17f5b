"""What operators, tests and demos do to a store; and its schema."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from importlib import resources

from outlast.model.errors import ConfigError, SchemaMismatch
from outlast.model.ids import Fence, Millis, TaskId, WriteNo
from outlast.store.database import Database, Rows, Script, StatementRefused, catalog
from outlast.store.protocols import Restored, StoreFacts

SCHEMA_VERSION = 1
"""The schema that this binary writes."""

_PAST_ANY = 1 << 32
"""Grants of one lease that no lost future can have seen: one a millisecond for seven weeks."""

_GRANTS_A_MS = 20
"""Bits: more grants of one lease than a store can make in a millisecond."""

_RESTORE_S = 3600.0


class Admin:
    """`AdminStore` on any database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = catalog(database.dialect)

    # --- schema -------------------------------------------------------------------------------

    async def migrate(self) -> Sequence[int]:
        applied: list[int] = []
        for number, text in self._migrations():
            facts = await self._facts()
            if facts is not None and facts.schema_version >= number:
                continue
            if await self._apply(number, text):
                applied.append(number)
        await self.check()
        return applied

    async def _apply(self, number: int, text: str) -> bool:
        """False when another process was faster: its transaction has committed before ours."""
        try:
            await self._database.run_ddl(text)
        except StatementRefused as refusal:
            facts = await self._facts()
            if facts is not None and facts.schema_version >= number:
                return False
            raise ConfigError(f"migration {number} failed: {refusal.reason}") from None
        return True

    async def check(self) -> StoreFacts:
        facts = await self._facts()
        if facts is None:
            raise SchemaMismatch("the database has no Outlast schema: run `outlast migrate`")
        if facts.readable_from > SCHEMA_VERSION:
            raise SchemaMismatch(
                f"the store has schema {facts.schema_version}, which needs a release of Outlast"
                f" that knows schema {facts.readable_from}; this one knows {SCHEMA_VERSION}:"
                " install the newer release"
            )
        if facts.schema_version < SCHEMA_VERSION:
            raise SchemaMismatch(
                f"the store has schema {facts.schema_version} and this release needs"
                f" {SCHEMA_VERSION}: run `outlast migrate`"
            )
        return facts

    async def _facts(self) -> StoreFacts | None:
        def script() -> Script[Rows]:
            return (yield self._queries("store_get"))

        try:
            rows = await self._database.read(script)
        except ConfigError:  # there is no such table
            return None
        row = rows[0]
        return StoreFacts(
            epoch=row["epoch"],
            schema_version=row["schema_version"],
            readable_from=row["readable_from"],
            now=Millis(row["now"]),
        )

    def _migrations(self) -> list[tuple[int, str]]:
        folder = resources.files("outlast.store") / "migrations" / self._database.dialect
        found = []
        for entry in folder.iterdir():
            if match := re.fullmatch(r"(\d{4})_\w+\.sql", entry.name):
                found.append((int(match[1]), entry.read_text(encoding="utf-8")))
        return sorted(found)

    async def restored(self) -> Restored:
        def script() -> Script[Restored]:
            # In the order of all writers: somebody may still be at work.
            epoch = yield self._queries("store_begin_epoch", epoch=secrets.token_hex(6))
            locked = yield self._queries("tasks_lock_unfinished")
            # By the time too: of one copy that is restored twice, the first future is lost as well.
            fences = {"past": _PAST_ANY, "beyond": epoch[0]["now"] << _GRANTS_A_MS}
            yield self._queries("task_runs_lose")
            yield self._queries("tasks_fence_off", **fences)
            yield self._queries("task_folds_forget_lost")
            yield self._queries("webhooks_fence_off", **fences)
            workers = yield self._queries("workers_bury_all")
            return Restored(
                epoch=epoch[0]["epoch"], leases=locked[0]["leased"], workers=len(workers)
            )

        return await self._database.transact(script, timeout=_RESTORE_S)

    # --- time ---------------------------------------------------------------------------------

    async def move_clock(self, by: Millis) -> None:
        await self._do("store_move_clock", by=by)

    async def next_due(self) -> tuple[Millis | None, Millis]:
        def script() -> Script[tuple[Millis | None, Millis]]:
            due = yield self._queries("tasks_next_due")
            now = yield self._queries("store_get")
            return due[0]["due"], Millis(now[0]["now"])

        return await self._database.read(script)

    # --- held tasks ---------------------------------------------------------------------------

    async def unhold(self, task_id: TaskId) -> bool:
        return bool(await self._do("tasks_unhold", task_id=task_id))

    async def resolve(
        self,
        task_id: TaskId,
        key: str,
        *,
        fence: Fence,
        write_no: WriteNo,
        result: str | None,
        force: bool = False,
    ) -> bool:
        def script() -> Script[bool]:
            rows = yield self._queries("tasks_take", task_id=task_id)
            if not rows:
                return False
            call = {
                "ledger_id": rows[0]["ledger_id"],
                "key": key,
                "fence": fence,
                "write_no": write_no,
            }
            if result is not None:
                return bool((yield self._queries("task_ledger_resolve", **call, result=result)))
            if not force:
                yield from self._needs_proven_death(task_id, fence)
            return bool((yield self._queries("task_ledger_clear", **call)))

        return await self._database.transact(script)

    def _needs_proven_death(self, task_id: TaskId, fence: Fence) -> Script[None]:
        alive = yield self._queries("task_runs_unproven", task_id=task_id, fence=fence)
        if alive:
            raise ConfigError(
                f"the worker {alive[0]['worker_id']} that made this call is not proven dead: it may"
                " be frozen and the call still under way; wait, or say --force"
            )

    async def _do(self, name: str, **params: object) -> Rows:
        def script() -> Script[Rows]:
            return (yield self._queries(name, **params))

        return await self._database.autocommit(script)
