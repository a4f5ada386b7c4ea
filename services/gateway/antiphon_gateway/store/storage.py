"""Everything that a gateway keeps, as one object."""

from __future__ import annotations

from antiphon_gateway.store.batches import BatchTable
from antiphon_gateway.store.consents import ConsentTable
from antiphon_gateway.store.database import Store
from antiphon_gateway.store.files import FileTable
from antiphon_gateway.store.idempotency import IdempotencyTable
from antiphon_gateway.store.keys import KeyTable
from antiphon_gateway.store.quotas import QuotaTable
from antiphon_gateway.store.responses import ResponseTable
from antiphon_gateway.store.settings import StoreSettings


class Storage:
    """The store and its tables; ``start`` before use, ``close`` after."""

    def __init__(self, settings: StoreSettings) -> None:
        self.store = Store(settings)
        self.keys = KeyTable(self.store)
        self.files = FileTable(self.store)
        self.batches = BatchTable(self.store)
        self.responses = ResponseTable(self.store)
        self.consents = ConsentTable(self.store)
        self.idempotency = IdempotencyTable(self.store)
        self.quotas = QuotaTable(self.store)

    def start(self) -> None:
        """Opens the store in the background."""
        self.store.start()

    async def close(self) -> None:
        """Closes the store."""
        await self.store.close()
