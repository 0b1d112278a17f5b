"""Who may call, and what happened at the door."""

from __future__ import annotations

from outlast.model.ids import Millis
from outlast.store.protocols import AUDIT_KEPT
from tests.contract.stores import HOUR, Store, entry, new_key, statements


async def kinds(store: Store, agent: str = "agent") -> list[str]:
    return [row["kind"] for row in await store.access.audit(agent)]


class TestCreateKey:
    async def test_keeps_it_with_an_audit_entry(self, store: Store) -> None:
        """Keep the key, with an audit entry in the same transaction."""
        new = new_key(tenant=None, scopes=("a", "b"), lasts=Millis(HOUR))
        with statements() as sent:
            made = await store.access.create_key(new, source="root@here")
        assert sent.count("commit") == 1
        assert (made.owner, made.tenant, made.scopes) == ("ann", None, ("a", "b"))
        assert made.expires_at is not None
        assert made.expires_at - made.created_at == HOUR
        (row,) = await store.access.audit("agent")
        assert (row["kind"], row["subject"], row["tenant"]) == ("key.created", "ann", "")
        assert (row["source"], row["detail"]) == ("root@here", f"{new.key_id} ci")

    async def test_again_changes_nothing(self, store: Store) -> None:
        """One that is kept already is returned as it is."""
        made = await store.access.create_key(new_key(), source="here")
        assert await store.access.create_key(new_key(), source="here") == made
        assert await kinds(store) == ["key.created"]

    async def test_again_after_it_was_revoked_does_not_revive_it(self, store: Store) -> None:
        """One that is kept already is returned as it is."""
        new = new_key()
        await store.access.create_key(new, source="here")
        await store.access.revoke_key("agent", new.key_id, source="here")
        again = await store.access.create_key(new, source="here")
        assert again.revoked_at is not None


class TestValidKey:
    async def test_finds_by_agent_and_hash(self, store: Store) -> None:
        """The agent's key of this hash; None for one that is unknown, has expired by the store's
        clock, or is revoked."""
        new = new_key()
        made = await store.access.create_key(new, source="here")
        assert await store.access.valid_key("agent", new.digest) == made
        assert await store.access.valid_key("another", new.digest) is None
        assert await store.access.valid_key("agent", new.digest[:-1] + "x") is None

    async def test_finds_no_expired_key(self, store: Store) -> None:
        """The agent's key of this hash; None for one that is unknown, has expired by the store's
        clock, or is revoked."""
        new = new_key(lasts=Millis(HOUR))
        await store.access.create_key(new, source="here")
        assert await store.access.valid_key("agent", new.digest) is not None
        await store.admin.move_clock(Millis(HOUR + 1))
        assert await store.access.valid_key("agent", new.digest) is None

    async def test_finds_no_revoked_key(self, store: Store) -> None:
        """The agent's key of this hash; None for one that is unknown, has expired by the store's
        clock, or is revoked."""
        new = new_key()
        await store.access.create_key(new, source="here")
        await store.access.revoke_key("agent", new.key_id, source="here")
        assert await store.access.valid_key("agent", new.digest) is None


class TestKeys:
    async def test_are_listed_the_newest_first(self, store: Store) -> None:
        """Every key of the agent, the newest first, also those that are no longer valid."""
        first, second = new_key("first"), new_key("second")
        await store.access.create_key(first, source="here")
        await store.admin.move_clock(Millis(HOUR))
        await store.access.create_key(second, source="here")
        await store.access.create_key(new_key("foreign", agent="another"), source="here")
        await store.access.revoke_key("agent", first.key_id, source="here")
        listed = await store.access.keys("agent")
        assert [key.name for key in listed] == ["second", "first"]
        assert [key.revoked_at is None for key in listed] == [True, False]


class TestRevokeKey:
    async def test_revokes_with_an_audit_entry(self, store: Store) -> None:
        """Revoke the key, with an audit entry in the same transaction."""
        new = new_key()
        await store.access.create_key(new, source="here")
        with statements() as sent:
            assert await store.access.revoke_key("agent", new.key_id, source="root@here")
        assert sent.count("commit") == 1
        assert sorted(await kinds(store)) == ["key.created", "key.revoked"]

    async def test_of_nothing_writes_nothing(self, store: Store) -> None:
        """False: the agent has no such key that is not revoked yet, and nothing was written."""
        new = new_key()
        await store.access.create_key(new, source="here")
        assert not await store.access.revoke_key("another", new.key_id, source="here")
        assert await store.access.revoke_key("agent", new.key_id, source="here")
        assert not await store.access.revoke_key("agent", new.key_id, source="here")
        assert len(await kinds(store)) == 2
        assert await kinds(store, "another") == []


class TestNote:
    async def test_writes_once(self, store: Store) -> None:
        """Write the entry, once however often it is repeated."""
        await store.access.note(entry(kind="refused"))
        await store.access.note(entry(kind="refused"))
        assert await kinds(store) == ["refused"]

    async def test_forgets_what_is_old(self, store: Store) -> None:
        """Some of those that are older than `AUDIT_KEPT` are forgotten."""
        await store.access.note(entry("1", kind="old"))
        await store.admin.move_clock(Millis(AUDIT_KEPT - HOUR))
        await store.access.note(entry("2", kind="young"))
        assert await kinds(store) == ["young", "old"]
        await store.admin.move_clock(Millis(HOUR + 1))
        await store.access.note(entry("3", kind="new"))
        assert await kinds(store) == ["new", "young"]


class TestAudit:
    async def test_reads_the_latest_first(self, store: Store) -> None:
        """The agent's latest entries with their times, the newest first."""
        for n in ("1", "2", "3"):
            await store.access.note(entry(n, kind=f"kind.{n}"))
            await store.admin.move_clock(Millis(1000))
        await store.access.note(entry("4", agent="another"))
        rows = await store.access.audit("agent", limit=2)
        assert [row["kind"] for row in rows] == ["kind.3", "kind.2"]
        assert rows[0]["at"] > rows[1]["at"]
