"""What a worker does to its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outlast.model.commit import Refused, Verdict, Write
from outlast.model.errors import AuthorError
from outlast.model.ids import LedgerId, TaskId, WorkerId
from outlast.model.lease import Lease
from outlast.model.ledger import LedgerEntry, LedgerKind
from outlast.store.codec import from_text, to_text
from outlast.store.commits import commit_script, fault_of
from outlast.store.database import Database, Rows, Script, StatementRefused, catalog
from outlast.store.protocols import NewWorker, Settings, Standing, VersionOf
from outlast.store.rows import entry_of, lease_of, standings_of


class Work:
    """`WorkStore` on any database."""

    def __init__(self, database: Database, settings: Settings | None = None) -> None:
        self._database = database
        self._queries = catalog(database.dialect)
        self._settings = settings or Settings()

    # --- registering and claiming -------------------------------------------------------------

    async def register(self, worker: NewWorker) -> None:
        await self._database.transact(lambda: self._register(worker))

    def _register(self, worker: NewWorker) -> Script[None]:
        for version in worker.versions:
            yield from self._put_version(worker.agent, version)
        yield self._queries(
            "workers_register",
            worker_id=worker.worker_id,
            agent=worker.agent,
            host=worker.host,
            beat_ms=worker.beat_ms,
            lease_ms=worker.lease_ms,
            versions=to_text([[v.workflow, v.version] for v in worker.versions]),
            presence=worker.presence,
        )

    def _put_version(self, agent: str, version: VersionOf) -> Script[None]:
        name = {"agent": agent, "workflow": version.workflow, "version": version.version}
        known = yield self._queries("versions_get", **name)
        if known and known[0]["fingerprint"] != version.fingerprint:
            in_flight = yield self._queries("versions_unfinished", **name)
            if in_flight[0]["in_flight"]:
                raise _changed(version, from_text(known[0]["steps"]))
        yield self._queries(
            "versions_put",
            **name,
            steps=to_text(list(version.steps)),
            fingerprint=version.fingerprint,
            on_cancel=version.on_cancel,
            on_failure=version.on_failure,
        )

    async def claim(
        self, worker_id: WorkerId, agent: str, workflow: str, version: int, *, limit: int
    ) -> Sequence[Lease]:
        def script() -> Script[list[Lease]]:
            rows = yield self._queries(
                "tasks_claim",
                worker_id=worker_id,
                agent=agent,
                workflow=workflow,
                version=version,
                n=limit,
            )
            for row in rows:
                if not row["run_opened"]:
                    yield self._queries(
                        "task_runs_open",
                        task_id=row["task_id"],
                        fence=row["fence"],
                        worker_id=worker_id,
                        step=row["step"],
                        attempt=row["attempt"],
                    )
            return [lease_of(row) for row in rows]

        return await self._database.autocommit(script)

    async def leased_to(self, worker_id: WorkerId) -> Mapping[TaskId, Standing]:
        return standings_of(await self._read("tasks_leased_to", worker_id=worker_id))

    async def sign_off(self, worker_id: WorkerId) -> None:
        await self._one("workers_sign_off", worker_id=worker_id)

    # --- writing ------------------------------------------------------------------------------

    async def commit(self, batch: Sequence[Write], *, patient: bool = False) -> Sequence[Verdict]:
        if len({write.task_id for write in batch}) != len(batch):
            raise ValueError("a batch holds at most one write per task")
        verdicts: dict[TaskId, Verdict] = {}
        sound: list[Write] = []
        for write in batch:
            if (fault := fault_of(write)) is None:
                sound.append(write)
            else:
                verdicts[write.task_id] = fault
        if sound:
            verdicts |= await self._commit(sound, patient)
        return [verdicts[write.task_id] for write in batch]

    async def _commit(self, batch: list[Write], patient: bool) -> dict[TaskId, Verdict]:
        """Once a statement is refused the batch is over: its writes go one by one, and only the
        guilty one fails."""
        try:
            return await self._database.transact(
                lambda: commit_script(self._queries, self._settings, batch, patient=patient)
            )
        except StatementRefused as refusal:
            if len(batch) == 1:
                return {batch[0].task_id: Refused(reason=str(refusal))}
        verdicts: dict[TaskId, Verdict] = {}
        for write in batch:
            verdicts |= await self._commit([write], patient)
        return verdicts

    async def settle(self, ledger_id: LedgerId, key: str, result: str) -> bool:
        return bool(
            await self._one("task_ledger_settle", ledger_id=ledger_id, key=key, result=result)
        )

    # --- reading the ledger -------------------------------------------------------------------

    async def entry(self, ledger_id: LedgerId, key: str) -> LedgerEntry | None:
        rows = await self._read("task_ledger_get", ledger_id=ledger_id, key=key)
        return entry_of(rows[0]) if rows else None

    async def entries(
        self, ledger_id: LedgerId, first: str, last: str, *, limit: int = 500
    ) -> Sequence[LedgerEntry]:
        rows = await self._read(
            "task_ledger_page", ledger_id=ledger_id, first=first, last=last, n=limit
        )
        return [entry_of(row) for row in rows]

    async def open_intents(self, ledger_id: LedgerId, kind: LedgerKind) -> Sequence[LedgerEntry]:
        rows = await self._read("task_ledger_open", ledger_id=ledger_id, kind=kind.value)
        return [entry_of(row) for row in rows]

    async def _read(self, name: str, **params: Any) -> Rows:
        def script() -> Script[Rows]:
            return (yield self._queries(name, **params))

        return await self._database.read(script)

    async def _one(self, name: str, **params: Any) -> Rows:
        def script() -> Script[Rows]:
            return (yield self._queries(name, **params))

        return await self._database.autocommit(script)


def _changed(version: VersionOf, known: list[str]) -> AuthorError:
    what = f"The steps of {version.workflow!r} version {version.version}"
    change = f"{what} changed from {', '.join(known)} to {', '.join(version.steps)}"
    if known == list(version.steps):
        change = f"{what} are the same, but whether they read an inbox changed"
    return AuthorError(
        f"{change} while tasks are in flight on it.",
        f"register the new list as version {version.version + 1} beside the old one, which goes"
        " on until its tasks have ended; the body of a step may change freely.",
    )
