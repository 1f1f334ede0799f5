"""Operations: slow work that somebody asked for; asked for, claimed, worked off, answered for.

Invariant: the input is stored before anybody is told that it was accepted, and what an operation writes commits
together with its success or not at all.
"""

from app.operations.desk import Desk, Order, Wanted
from app.operations.extract import extraction_order, session_order
from app.operations.kinds import OPERATION_KINDS
from app.operations.operator import Operator
from app.operations.queue import OperationConfig, Queue, expire_operations, waiting
from app.operations.tools import Tools

__all__ = [
    "OPERATION_KINDS",
    "Desk",
    "OperationConfig",
    "Operator",
    "Order",
    "Queue",
    "Tools",
    "Wanted",
    "expire_operations",
    "extraction_order",
    "session_order",
    "waiting",
]
