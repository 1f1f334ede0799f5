"""Who asks, and what that allows: the one place that compares a key's bonds with a user and an agent."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from app.errors import Forbidden

SCOPES: Final = ("read", "write", "delete", "ops", "admin")
"""read, write and delete memories; ops reads metrics; admin manages keys and tenants. None includes another."""


FULL_TRUST: Final = 100


@dataclass(frozen=True, slots=True)
class Caller:
    """A tenant, and if the key is bound, the one user or agent that it may act for.

    `key_id` is None for the caller behind the open door of a loopback service without keys. `trust`, 0 to 100, says how
    far what it writes is to be believed.
    """

    tenant_id: UUID
    key_id: UUID | None
    agent_id: str | None
    user_id: str | None
    scopes: frozenset[str]
    trust: int = FULL_TRUST

    @property
    def actor(self) -> str:
        """The name in the audit trail: `key:<id>`, or `open` behind the open door."""
        return "open" if self.key_id is None else f"key:{self.key_id}"

    def bind(self, user_id: str | None, agent_id: str | None) -> tuple[str | None, str | None]:
        """The user and agent that a write, list or search acts for, when the request names these two.

        A bound key fills in what the request leaves out (so it never writes to the tenant's shared subject), and
        raises Forbidden when it names anybody else: whether that user exists makes no difference to the answer.
        """
        if self.user_id is not None and user_id not in (None, self.user_id):
            raise Forbidden("this key is bound to another user")
        if self.agent_id is not None and agent_id not in (None, self.agent_id):
            raise Forbidden("this key is bound to another agent")
        return self.user_id or user_id, self.agent_id or agent_id

    def act_for_all(self) -> None:
        """Raises Forbidden for a bound key, where something concerns every user and agent of the tenant."""
        if self.user_id is not None or self.agent_id is not None:
            raise Forbidden("this key is bound to a user or an agent, and this concerns all of them")

    def may_read(self, user_id: str | None, agent_id: str | None) -> bool:
        """Whether a stored memory of this user and agent may be shown; None = shared, which all may read.

        Where this is False the answer is NotFound, as if the memory did not exist.
        """
        return (self.user_id is None or user_id in (None, self.user_id)) and (
            self.agent_id is None or agent_id in (None, self.agent_id)
        )

    def may_change(self, user_id: str | None, agent_id: str | None) -> bool:
        """Whether a stored memory of this user and agent may be edited or deleted; a bound key changes only its own.

        Where this is False the answer is NotFound, as if the memory did not exist.
        """
        return self.user_id in (None, user_id) and self.agent_id in (None, agent_id)
