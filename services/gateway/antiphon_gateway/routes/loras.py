"""/v1/loras: load, list, describe and unload adapters."""

from __future__ import annotations

import msgspec

from antiphon_gateway.http import Receive, Scope, Send, send_response
from antiphon_gateway.identity.principal import current_principal
from antiphon_gateway.openai import loras as wire
from antiphon_gateway.openai.fields import LORA
from antiphon_gateway.routes.common import gateway_of, read_request

_SHARED_SCOPE = "admin"
"""What is everybody's is the operator's to change."""


class Loras:
    """POST loads one for the caller's tenant, or for all; GET lists what the tenant may use."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = gateway_of(scope)
        adapters = gateway.backends.adapters
        if scope["method"] != "POST":
            listed = wire.LoraList([wire.lora(model) for model in adapters.visible()])
            await send_response(send, 200, msgspec.json.encode(listed))
            return
        request, headers = await read_request(scope, receive, wire.LoraRequest, LORA, "loras")
        shared = bool(request.shared)
        if shared:
            current_principal().require(_SHARED_SCOPE)
        loaded = await adapters.load(
            request.name,
            request.path,
            shared=shared,
            base_model=request.base_model or "",
            timeout=gateway.settings.limits.request_seconds,
        )
        await send_response(send, 200, msgspec.json.encode(wire.lora(loaded)), headers=headers)


class Lora:
    """One adapter: GET describes it, DELETE unloads it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = gateway_of(scope)
        adapters = gateway.backends.adapters
        model = adapters.find(scope["path_params"]["name"])
        answer: object = wire.lora(model)
        if scope["method"] == "DELETE":
            if model.shared:
                current_principal().require(_SHARED_SCOPE)
            await adapters.unload(model, timeout=gateway.settings.limits.request_seconds)
            answer = wire.LoraDeleted(model.id)
        await send_response(send, 200, msgspec.json.encode(answer))
