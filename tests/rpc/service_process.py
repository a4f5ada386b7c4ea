"""A service as a process: ``python service_process.py <boot behaviour> [bind]``."""

from __future__ import annotations

import asyncio
import sys

from antiphon_core.errors import InvalidArgument
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.logs import configure_logging, get_logger
from antiphon_core.node import NodeAdminServicer, ServerInfo
from antiphon_core.rpc.server import RpcServer
from antiphon_core.service import StopPolicy, StopRequest, run_main, run_service
from rpc_stub import SERVICE, ScriptServicer, add_script_servicer


async def main(behaviour: str, bind: str) -> int:
    configure_logging("test")
    lifecycle = Lifecycle()
    stop = StopRequest()
    node = NodeAdminServicer(
        lifecycle, lambda: ServerInfo(service="test", version="1"), on_shutdown=stop.ask
    )
    server = RpcServer(service="test", bind=bind, lifecycle=lifecycle, node=node)
    servicer = ScriptServicer()

    async def script(text: str) -> str:
        if text == "fail":
            lifecycle.failed("the engine gave up")
        elif text != "now":
            get_logger("test").info("call_runs")
            await asyncio.sleep(float(text))
        return "done"

    servicer.script = script
    server.add(add_script_servicer, servicer, SERVICE)

    async def boot() -> None:
        lifecycle.booting("weights")
        match behaviour:
            case "slow" | "stall":
                await asyncio.sleep(60)
            case "typed":
                raise InvalidArgument("model 'x' is no GGUF file;\n give a .gguf file")
            case "defect":
                raise RuntimeError("defect in boot")

    async def drain(grace: float) -> None:
        if behaviour == "other work":
            print(f"other work may take {grace:g} s", flush=True)
            await asyncio.sleep(grace + 1)

    async def close() -> None:
        print("closed", flush=True)

    policy = StopPolicy(drain_grace=20.0, boot_progress_limit=0.5 if behaviour == "stall" else 300)
    return await run_service(
        server, boot, drain=drain, close=close, stop=stop, policy=policy, version="1"
    )


sys.exit(run_main(lambda: main(sys.argv[1], sys.argv[2])))
