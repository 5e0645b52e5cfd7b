"""What must hold of guards and idempotency keys."""

from __future__ import annotations

import pytest

from infrastructure.event_store import (
    AttemptIs,
    DecidedAt,
    DuplicateKey,
    EventStore,
    Fenced,
    IsOpen,
    StaleDecision,
    StreamClosed,
    StreamInfo,
    VersionConflict,
    VersionIs,
)
from infrastructure.verify import verify
from tests.contract.base import Base, Opener, whole
from tests.contract.samples import append, chunk, claim, end, key, started


class GuardContract(Base):
    """Guards and keys."""

    async def test_a_version_guard_lets_one_of_two_creators_through(
        self, store: EventStore
    ) -> None:
        await store.append(append("s", guards=(VersionIs(0),)))
        with pytest.raises(VersionConflict):
            await store.append(append("s", guards=(VersionIs(0),)))
        await store.append(append("s", guards=(VersionIs(1),)))

    async def test_an_attempt_guard_fences_the_attempt_before(self, store: EventStore) -> None:
        await store.append(append("s"))
        await store.append(append("s", claim(1), guards=(AttemptIs(0),)))
        await store.append(append("s", chunk(), guards=(AttemptIs(1),)))
        with pytest.raises(Fenced):  # the loser of a race for the same claim
            await store.append(append("s", claim(1), guards=(AttemptIs(0),)))
        await store.append(append("s", claim(2), guards=(AttemptIs(1),)))
        with pytest.raises(Fenced):
            await store.append(append("s", chunk(), guards=(AttemptIs(1),)))
        await store.append(append("s", end(2), guards=(AttemptIs(2),)))
        with pytest.raises(Fenced):
            await store.append(append("s", chunk(), guards=(AttemptIs(2),)))
        assert await store.stream("s") == StreamInfo(name="s", version=5, attempt=2, open=False)

    async def test_an_open_guard_holds_until_the_terminal_event(self, store: EventStore) -> None:
        with pytest.raises(StreamClosed):
            await store.append(append("s", end(), guards=(IsOpen(),)))
        await store.append(append("s"))
        await store.append(append("s", end(), guards=(IsOpen(),)))
        with pytest.raises(StreamClosed):
            await store.append(append("s", end(), guards=(IsOpen(),)))

    async def test_an_attempt_guard_does_not_hold_for_a_stream_that_is_not_there(
        self, store: EventStore
    ) -> None:
        with pytest.raises(Fenced):
            await store.append(append("s", guards=(AttemptIs(0),)))

    async def test_a_decision_is_stale_once_state_changed(self, store: EventStore) -> None:
        await store.append(append("a", started()))
        await store.append(append("b", guards=(DecidedAt(1),)))
        with pytest.raises(StaleDecision):
            await store.append(append("c", guards=(DecidedAt(1),)))

    async def test_token_events_do_not_make_a_decision_stale(self, store: EventStore) -> None:
        await store.append(append("a", started(), chunk(0), chunk(1)))
        await store.append(append("a", chunk(2)))
        await store.append(append("b", guards=(DecidedAt(1),)))
        [result] = await store.append_all([append("c", guards=(DecidedAt(4),))])
        assert isinstance(result, StaleDecision)

    async def test_a_failed_guard_refuses_its_append_alone(self, store: EventStore) -> None:
        results = await store.append_all(
            [
                append("a", guards=(VersionIs(0),)),
                append("b", started(), started(), guards=(VersionIs(7),)),
                append("a", guards=(VersionIs(1),)),
                append("a", guards=(VersionIs(1),)),
                append("c", guards=(VersionIs(0), DecidedAt(0))),
                append("b", guards=(VersionIs(0),)),
            ]
        )
        assert [type(result).__name__ for result in results] == [
            "tuple",
            "VersionConflict",
            "tuple",
            "VersionConflict",
            "StaleDecision",
            "tuple",
        ]
        events = await whole(store)
        assert [(r.position, r.stream, r.version) for r in events] == [
            (1, "a", 1),
            (2, "a", 2),
            (3, "b", 1),
        ]
        assert verify(events, await store.head()).fault is None

    async def test_guards_hold_after_reopening(self, opener: Opener) -> None:
        store = await opener()
        await store.append(append("s", started(), claim(3)))
        await store.append(append("gone", started(), end()))
        await store.close()
        store = await opener()
        for guards, stream, error in (
            ((VersionIs(1),), "s", VersionConflict),
            ((AttemptIs(2),), "s", Fenced),
            ((IsOpen(),), "gone", StreamClosed),
            ((DecidedAt(3),), "s", StaleDecision),
        ):
            with pytest.raises(error):
                await store.append(append(stream, guards=guards))
        await store.append(append("s", guards=(VersionIs(2), AttemptIs(3), IsOpen(), DecidedAt(4))))
        await store.close()

    async def test_an_idempotency_key_belongs_to_the_first_command(self, opener: Opener) -> None:
        store = await opener()
        await store.append(append("completion/1", command=key("1", "k")))
        for _ in range(2):
            with pytest.raises(DuplicateKey) as caught:
                await store.append(append("completion/2", command=key("2", "k")))
            assert caught.value.command_id == "1"
            assert caught.value.body_digest == "digest of 1"
            await store.close()
            store = await opener()
        assert await store.stream("completion/2") is None
        await store.append(append("completion/3", command=key("3", "k", actor="other")))
        await store.close()

    async def test_a_key_used_twice_in_one_group_is_refused_the_second_time(
        self, store: EventStore
    ) -> None:
        first, second, third = await store.append_all(
            [
                append("completion/1", command=key("1", "k")),
                append("completion/2", command=key("2", "k")),
                append("completion/1", command=key("1")),
            ]
        )
        assert isinstance(first, tuple)
        assert isinstance(second, DuplicateKey)
        assert isinstance(third, DuplicateKey)
        assert (await store.head()).position == 1

    async def test_commands_without_a_key_never_collide(self, store: EventStore) -> None:
        await store.append_all([append(f"completion/{n}", command=key(str(n))) for n in range(3)])
        assert (await store.head()).position == 3

    async def test_a_command_is_found_by_its_id_and_by_its_key(self, store: EventStore) -> None:
        await store.append(append("server"))
        await store.append(append("completion/1", started(), started(), command=key("1", "k")))
        found = await store.command("1")
        assert found is not None
        assert (found.stream, found.position, found.kind, found.actor) == (
            "completion/1",
            2,
            "ChatCompletion",
            "anonymous",
        )
        assert await store.command_by_key("anonymous", "k") == found
        assert await store.command_by_key("other", "k") is None
