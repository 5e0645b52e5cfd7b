"""What every backend of the event store must do, whatever it is made of.

A backend's tests subclass `StoreContract` and give it a fixture `opener`.
"""

from __future__ import annotations

from tests.contract.append_contract import AppendContract
from tests.contract.closing_contract import ClosingContract
from tests.contract.follow_contract import FollowContract
from tests.contract.guard_contract import GuardContract
from tests.contract.read_contract import ReadContract


class StoreContract(AppendContract, GuardContract, ReadContract, FollowContract, ClosingContract):
    """All of it."""
