"""The adapters of a fake llm service: those of each tenant, and those for all."""

from __future__ import annotations

from antiphon.llm.v1 import generate_pb2 as gen
from antiphon.llm.v1 import llm_service_pb2 as llm
from antiphon.llm.v1 import llm_service_pb2_grpc
from antiphon_core.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from antiphon_core.rpc.context import ALL_TENANTS, current

BASE = "org/small-model"


class AdapterCalls(llm_service_pb2_grpc.LlmServiceServicer):
    """Knows the path ``good``; an adapter named ``busy`` is always in use."""

    def __init__(self) -> None:
        self.adapters: list[llm.Model] = []
        self.listed_for_all = 0

    async def LoadAdapter(self, request, context) -> llm.LoadAdapterResponse:
        tenant = "" if request.shared else current().tenant
        if self._find(request.name, tenant, request.shared) is not None:
            raise AlreadyExists(f"name {request.name!r} is that of an adapter", field="name")
        if request.path != "good":
            raise InvalidArgument("path is no directory beneath the adapter root", field="path")
        model = llm.Model(
            id=request.name,
            context_limit=2048,
            input_modalities=[gen.MODALITY_TEXT],
            output_modalities=[gen.MODALITY_TEXT],
            chat=True,
            base_model=BASE,
            created_at_seconds=1_700_000_002,
            tenant=tenant,
            shared=request.shared,
        )
        self.adapters.append(model)
        return llm.LoadAdapterResponse(model=model)

    async def UnloadAdapter(self, request, context) -> llm.UnloadAdapterResponse:
        tenant = "" if request.shared else current().tenant
        found = self._find(request.name, tenant, request.shared)
        if found is None:
            raise NotFound("no such adapter", reason="ADAPTER_NOT_FOUND", field="name")
        if request.name == "busy":
            raise FailedPrecondition("the adapter is used", reason="IN_USE", field="name")
        self.adapters.remove(found)
        return llm.UnloadAdapterResponse()

    def listed_adapters(self, context) -> list[llm.Model]:
        """What ListModels shows of them: the gateway asks for those of every tenant."""
        if (ALL_TENANTS, "1") not in tuple(context.invocation_metadata()):
            return []
        self.listed_for_all += 1
        return self.adapters

    def _find(self, name: str, tenant: str, shared: bool) -> llm.Model | None:
        for model in self.adapters:
            if (model.id, model.tenant, model.shared) == (name, tenant, shared):
                return model
        return None
