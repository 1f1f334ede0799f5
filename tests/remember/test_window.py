"""What stays in a window: the latest turns within the tokens, results of tools longer than what was only said."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from app.extract.conversation import Role
from app.remember.window import _FORGET_EMPTY, WindowMessage, fit
from app.tables import metadata

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def messages(*said: tuple[Role, int]) -> list[WindowMessage]:
    """A conversation of (role, tokens)."""
    made: list[WindowMessage] = []
    turn = -1
    for number, (role, tokens) in enumerate(said):
        turn = turn + 1 if role == "user" else max(turn, 0)
        at = NOON + timedelta(seconds=number)
        made.append(WindowMessage(uuid4(), role, f"{role} {number}", at, None, None, turn, tokens))
    return made


def kept(said: list[tuple[Role, int]], most_turns: int, most_tokens: int) -> list[str]:
    return [message.content for message in fit(messages(*said), most_turns, most_tokens)]


def test_a_turn_is_what_a_user_says_and_all_up_to_the_next_word() -> None:
    said: list[tuple[Role, int]] = [("user", 1), ("assistant", 1), ("user", 1), ("assistant", 1), ("user", 1)]
    assert kept(said, 2, 99) == ["user 2", "assistant 3", "user 4"]


def test_plain_dialogue_gives_way_before_results_of_tools() -> None:
    said: list[tuple[Role, int]] = [("tool", 5), ("user", 5), ("tool", 5), ("assistant", 5), ("user", 5)]
    assert kept(said, 20, 20) == ["tool 0", "tool 2", "assistant 3", "user 4"]
    assert kept(said, 20, 15) == ["tool 0", "tool 2", "user 4"]
    assert kept(said, 20, 10) == ["tool 2", "user 4"]
    assert kept(said, 1, 99) == ["tool 0", "tool 2", "user 4"]


def test_the_newest_stays_whatever_it_is() -> None:
    assert kept([("tool", 5), ("user", 9)], 20, 9) == ["user 1"]


ROLES: tuple[Role, ...] = ("user", "assistant", "tool", "system")


def test_whatever_belongs_to_a_subject_was_thought_of_when_an_empty_one_is_forgotten() -> None:
    """It goes with its subject (CASCADE): a new table either keeps the subject, or may go with it."""
    of_subjects = {
        table.name
        for table in metadata.tables.values()
        for constraint in table.foreign_key_constraints
        if constraint.referred_table.name == "subjects"
    }
    keep_it = {name for name in of_subjects if f"FROM {name} " in _FORGET_EMPTY.sql}
    assert keep_it >= {"memories", "session_windows", "legal_holds"}
    assert of_subjects - keep_it == {
        "term_statistics", "kind_searches", "subject_stamps", "consolidation_marks"
    } & of_subjects  # fmt: skip


SAID = st.lists(st.tuples(st.sampled_from(ROLES), st.integers(1, 50)), min_size=1, max_size=60)


@given(SAID, st.integers(1, 20), st.integers(50, 400))
def test_what_stays_is_within_both_limits_in_order_and_nothing_left_needlessly(
    said: list[tuple[Role, int]], most_turns: int, most_tokens: int
) -> None:
    offered = messages(*said)
    stays = fit(offered, most_turns, most_tokens)
    assert stays[-1] == offered[-1]
    assert list(stays) == [message for message in offered if message in stays]
    tokens = sum(message.tokens for message in stays)
    turns = {message.turn for message in stays if message.role != "tool"}
    assert tokens <= most_tokens
    assert len(turns) <= most_turns
    left = [message for message in offered if message not in stays]
    if left:
        last = max(left, key=lambda message: (message.role == "tool", message.at))
        turns_with = turns | ({last.turn} if last.role != "tool" else set())
        assert tokens + last.tokens > most_tokens or len(turns_with) > most_turns
        if last.role == "tool":  # then nothing but the newest is plain
            assert all(message.role == "tool" for message in stays[:-1])
