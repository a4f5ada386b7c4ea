"""Loading and unloading of adapters while the engine serves."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from antiphon_core.logs import get_logger

from antiphon_llm.adapter_messages import AdapterFacts, LoadAdapter, UnloadAdapter
from antiphon_llm.messages import Done
from antiphon_llm.models.adapters import ModelAdapters

from .paths import AdapterRoot
from .refusal import AdapterRefused
from .registry import Adapter, AdapterRegistry, Owner
from .weights import AdapterWeights, LayerShapes, read_adapter

_log = get_logger(__name__)

_MOST_PENDING = 64


@dataclass(slots=True)
class _Reading:
    message: LoadAdapter
    weights: Future[AdapterWeights]


class AdapterDesk:
    """Reads files on a thread of its own, and changes the model's tables between two steps.

    Args:
        model: the tables.
        root: where adapters may be read from.
        shapes: of the base model's products.
        byte_limit: of all adapters together, in fp32.
        users: how many live requests use the adapter of a version.
        answer: sends the one Done of each message.
    """

    def __init__(
        self,
        model: ModelAdapters,
        root: AdapterRoot,
        shapes: LayerShapes,
        *,
        byte_limit: int,
        users: Callable[[int], int],
        answer: Callable[[Done], None],
    ) -> None:
        self._model = model
        self._root = root
        self._shapes = shapes
        self._byte_limit = byte_limit
        self._users = users
        self._answer = answer
        self._registry = AdapterRegistry(model.slots, byte_limit)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="adapter-reader")
        self._readings: list[_Reading] = []
        self._leaving: list[tuple[UnloadAdapter, Adapter]] = []
        self._loads = self._unloads = self._refusals = 0

    @property
    def pending(self) -> bool:
        """Whether a message waits for its answer."""
        return bool(self._readings or self._leaving)

    @property
    def due(self) -> bool:
        """Whether the tables are to be changed as soon as no step runs."""
        return bool(self._leaving) or any(item.weights.done() for item in self._readings)

    def counters(self) -> dict[str, int]:
        """What came and went, by name."""
        return {
            "adapters: loaded": self._loads,
            "adapters: unloaded": self._unloads,
            "adapters: refused": self._refusals,
        }

    @property
    def loaded(self) -> int:
        """Adapters that requests may name."""
        return len(self._registry)

    @property
    def nbytes(self) -> int:
        """Bytes of theirs."""
        return self._registry.nbytes

    def find(self, tenant: str, name: str) -> Adapter | None:
        """The adapter that a tenant may use by this name."""
        return self._registry.find(tenant, name)

    def load(self, message: LoadAdapter) -> None:
        """Begins to read an adapter, or answers why not."""
        owner = _owner(message)
        try:
            if len(self._readings) >= _MOST_PENDING:
                raise AdapterRefused("too many adapters are being read", "QUEUE_FULL")
            self._registry.reserve(owner, message.name)
        except AdapterRefused as refused:
            self._refuse(message.request_id, refused)
            return
        weights = self._reader.submit(
            read_adapter,
            self._root,
            message.path,
            shapes=self._shapes,
            rank_max=self._model.rank_max,
            byte_limit=self._byte_limit,
        )
        self._readings.append(_Reading(message, weights))

    def unload(self, message: UnloadAdapter) -> None:
        """Takes an adapter's name away, so that its slot can be emptied; or answers why not."""
        adapter = self._registry.owned(_owner(message), message.name)
        users = 0 if adapter is None else self._users(adapter.version)
        if adapter is None:
            refused = AdapterRefused(
                f"no adapter {message.name!r} is loaded", "ADAPTER_NOT_FOUND", field="name"
            )
            self._refuse(message.request_id, refused)
        elif users:
            refused = AdapterRefused(
                f"the adapter {message.name!r} is used by {users} live requests", "IN_USE",
                field="name", limit=0, observed=users,
            )  # fmt: skip
            self._refuse(message.request_id, refused)
        else:
            self._registry.drop(adapter)
            self._leaving.append((message, adapter))

    def apply(self) -> None:
        """Empties and fills slots for what is due. No step may be running."""
        for message, adapter in self._leaving:
            self._model.remove(adapter.slot)
            self._registry.vacate(adapter)
            self._unloads += 1
            _log.info("adapter_unloaded", adapter=adapter.name, version=adapter.version)
            self._answer(Done(message.request_id))
        self._leaving.clear()
        ready = [item for item in self._readings if item.weights.done()]
        self._readings = [item for item in self._readings if item not in ready]
        for item in ready:
            self._install(item)

    def close(self) -> None:
        """Ends the thread; what it still reads is dropped."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _install(self, item: _Reading) -> None:
        message, owner = item.message, _owner(item.message)
        adapter: Adapter | None = None
        try:
            weights = item.weights.result()
            adapter = self._registry.add(owner, message.name, weights.nbytes)
            self._model.install(adapter.slot, weights.layers)
        except Exception as error:
            self._registry.forgo(owner, message.name)
            if adapter is not None:
                self._registry.drop(adapter)
                self._registry.vacate(adapter)
            if not isinstance(error, AdapterRefused):
                _log.exception("adapter_failed", adapter=message.name)
                error = AdapterRefused(f"{type(error).__name__}: {error}", "INTERNAL")
            self._refuse(message.request_id, error)
            return
        self._loads += 1
        _log.info(
            "adapter_loaded",
            adapter=adapter.name,
            version=adapter.version,
            rank=weights.rank,
            bytes=weights.nbytes,
        )
        facts = AdapterFacts(weights.digest, weights.rank, weights.nbytes)
        self._answer(Done(message.request_id, adapter=facts))

    def _refuse(self, request_id: str, refused: AdapterRefused) -> None:
        self._refusals += 1
        self._answer(
            Done(
                request_id,
                str(refused),
                refused.reason,
                field=refused.field,
                limit=refused.limit,
                observed=refused.observed,
            )
        )


def _owner(message: LoadAdapter | UnloadAdapter) -> Owner:
    return None if message.shared else message.tenant
