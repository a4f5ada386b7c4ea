"""Boot of the codec process: load, measure, decide the slots, allocate, warm up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from antiphon_core.ipc.endpoint import Endpoint
from antiphon_core.logs import get_logger

from antiphon_vocoder.codec.contract import Codec
from antiphon_vocoder.codec_engine.admission import admit, share_left, streams_kept_up_with
from antiphon_vocoder.codec_engine.device import StepDevice, open_device
from antiphon_vocoder.codec_engine.hops import HopPlan
from antiphon_vocoder.codec_engine.loop import CodecLoop
from antiphon_vocoder.codec_engine.runner import CodecRunner
from antiphon_vocoder.codec_engine.scheduler import StepScheduler
from antiphon_vocoder.codec_engine.stream import StepKey
from antiphon_vocoder.codec_messages import (
    CodecEngineConfig,
    CodecEngineReady,
    CodecInfo,
    CodecPhase,
    Precision,
    Stage,
)

_FREE_SHARE = 0.8
"""Of the device's free memory, where no amount is set."""
_LEAST_GROWTH = 0.5
"""A rung's step is expected to take at least this share of its rows' time at the rung below."""

LoadCodec = Callable[[Path, torch.device, Precision], Codec]
"""Loads a checkpoint directory on a device in a precision; ValueError or OSError if it cannot."""

log = get_logger("vocoder.codec")


def boot(endpoint: Endpoint, config: CodecEngineConfig, load: LoadCodec) -> CodecLoop:
    """Brings the process up and tells the front what it serves.

    Raises:
        ValueError, OSError: the device, a checkpoint or the memory is not as it must be.
    """
    device = open_device(config.device, config.threads)
    memory = config.memory_bytes or int(_FREE_SHARE * (device.free_bytes() + device.used_bytes()))
    endpoint.send(CodecPhase("load"))
    codecs = load_codecs(config.codecs, device.device, config.precision, load)
    endpoint.send(CodecPhase("measure"))
    trial = _runners(codecs, device, config, slots=1)
    rungs = _measure(trial, config, device, memory)
    stream_bytes = sum(runner.bytes_per_slot for runner in trial.values())
    base_bytes = max(0, device.used_bytes() - 2 * stream_bytes)
    admission = admit(
        wanted=config.slots,
        memory_bytes=memory,
        base_bytes=base_bytes,
        stream_bytes=stream_bytes,
        keeps_up_with=streams_kept_up_with(trial, rungs),
    )
    costs = {key: by_rung for runner in trial.values() for key, by_rung in runner.costs.items()}
    for runner in trial.values():
        runner.release()
    device.release()
    endpoint.send(CodecPhase("warm_up"))
    rungs = _needed(rungs, admission.slots)
    runners = _runners(codecs, device, config, slots=admission.slots)
    for runner in runners.values():
        for rung in reversed(rungs):
            runner.bind(rung, timed=False)
    loop = CodecLoop(
        endpoint,
        device,
        runners,
        StepScheduler(rungs, costs, config.peer_wait_seconds),
        config.lead_seconds,
    )
    endpoint.send(
        CodecEngineReady(
            codecs=[_info(runner, costs, rungs[0]) for runner in runners.values()],
            slots=admission.slots,
            bound=admission.bound,
            base_bytes=base_bytes,
            stream_bytes=stream_bytes,
            rungs=rungs,
            recorded=sum(runner.recorded for runner in runners.values()),
        )
    )
    return loop


def load_codecs(
    entries: Sequence[str], device: torch.device, precision: Precision, load: LoadCodec
) -> dict[str, Codec]:
    """Loaded codecs by the name under which they are served, in the order of the setting.

    Args:
        entries: each ``directory`` or ``name=directory``; without a name the codec's own.

    Raises:
        ValueError: two have one name, or a codec cannot be streamed.
        OSError: a file cannot be read.
    """
    codecs: dict[str, Codec] = {}
    for entry in entries:
        given, separator, path = entry.rpartition("=")
        codec = load(Path(path), device, precision)
        spec = codec.spec
        name = given.strip() if separator else spec.name
        if name in codecs:
            raise ValueError(f"two codecs are called {name}: write one as name=directory")
        if spec.channels != 1 or not (spec.streams_decode or spec.streams_encode):
            raise ValueError(
                f"codec {name} cannot be streamed: {spec.channels} channels, "
                f"decode {spec.streams_decode}, encode {spec.streams_encode}"
            )
        codecs[name] = codec
    return codecs


def hop_plans(codec: Codec, config: CodecEngineConfig) -> dict[Stage, HopPlan]:
    """How streams are cut, for the directions that the codec streams."""
    spec = codec.spec
    plans = {}
    if spec.streams_decode:
        plans[Stage.DECODE] = HopPlan(config.decode_ramp, spec.frame_rate, spec.first_hop_frames)
    if spec.streams_encode:
        plans[Stage.ENCODE] = HopPlan(config.encode_ramp, spec.frame_rate, spec.first_hop_frames)
    return plans


def _runners(
    codecs: dict[str, Codec], device: StepDevice, config: CodecEngineConfig, *, slots: int
) -> dict[str, CodecRunner]:
    return {
        name: CodecRunner(name, codec, device, slots=slots, plans=hop_plans(codec, config))
        for name, codec in codecs.items()
    }


def _measure(
    trial: dict[str, CodecRunner], config: CodecEngineConfig, device: StepDevice, memory: int
) -> list[int]:
    """Times the rungs from the smallest on; returns those that are worth having.

    Ends at the rung that holds the wanted slots, and before one whose step takes too long for
    real time or more memory than there is.
    """
    kept: list[int] = []
    for rung in config.rungs:
        if kept and _expected_share(trial, kept[-1], rung) < 1.0:
            break
        try:
            for runner in trial.values():
                runner.bind(rung)
        except torch.OutOfMemoryError as error:
            if not kept:
                raise ValueError(f"not even {rung} row fits the device: {error}") from error
            log.warning("codec_rung_left_out", rung=rung, reason="memory")
            break
        if kept and (device.used_bytes() > memory or _share(trial, rung) < 1.0):
            break
        kept.append(rung)
        if config.slots and rung >= config.slots:
            break
    if _share(trial, kept[0]) < 1.0:
        log.warning("codec_slower_than_real_time", share=round(_share(trial, kept[0]), 3))
    return kept


def _share(trial: dict[str, CodecRunner], rung: int) -> float:
    return min(
        share_left(runner, stage, rung) for runner in trial.values() for stage in runner.plans
    )


def _expected_share(trial: dict[str, CodecRunner], rung: int, above: int) -> float:
    return _share(trial, rung) / max(1.0, above / rung * _LEAST_GROWTH)


def _needed(rungs: list[int], slots: int) -> list[int]:
    """The rungs up to the first that holds all slots."""
    enough = next((place for place, rung in enumerate(rungs) if rung >= slots), len(rungs) - 1)
    return rungs[: enough + 1]


def _info(runner: CodecRunner, costs: dict[StepKey, dict[int, float]], rung: int) -> CodecInfo:
    spec = runner.codec.spec
    cost = {}
    for stage, plan in runner.plans.items():
        seconds = plan.steady * spec.frame_samples / spec.sample_rate
        cost[stage] = costs[StepKey(runner.name, stage, plan.steady)][rung] / seconds / rung
    return CodecInfo(
        name=runner.name,
        sample_rate=spec.sample_rate,
        frame_samples=spec.frame_samples,
        codebook_count=spec.codebook_count,
        codebook_size=spec.codebook_size,
        control_codes=sorted(spec.control_codes),
        stages=list(runner.plans),
        hops={stage: (plan.boundary(0), plan.longest) for stage, plan in runner.plans.items()},
        cost=cost,
    )
