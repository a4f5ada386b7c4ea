"""`make bars-speech`: the speech service's claims that this machine can measure, one BAR line each.

The speeds of :mod:`bench.speech_cpu`, then a minute of :mod:`bench.speech_soak`: the same code as
`make soak-speech` runs for ten. At most ten minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from antiphon_core.logs import configure_logging

from bench import speech_cpu
from bench.report import Report
from bench.speech_soak import Findings, first_audio_p50, soak

RUN_DIR = Path("run/bars-speech")
SOAK_S = 60.0


def judge(report: Report, found: Findings) -> None:
    """The soak's bars."""
    below, near, above = found.below, found.near, found.above
    report.add("below_capacity_underruns", below.get("underruns", 0), asdict(found))
    report.add("near_capacity_underruns", near.get("underruns", 0))
    refused = below.get("refused", 0) + near.get("refused", 0)
    report.add("below_capacity_refused", refused)
    report.add("below_capacity_first_audio_p50", 1000 * first_audio_p50(found))
    report.add("above_capacity_refused", above.get("refused", 0))
    report.add("refusals_without_retry", above.get("without_retry", 0))
    outcomes = (*found.spoken.values(), found.heard)
    report.add("lost_streams", sum(one.get("lost", 0) for one in outcomes))
    counts = [item for one in outcomes for item in one.items()]
    report.add("unexpected_errors", sum(n for name, n in counts if name.startswith("error")))
    report.add("slots_left", found.slots_left)


async def _measure(report: Report, peer: speech_cpu.Peer | None) -> None:
    await speech_cpu.measure(report, peer)
    judge(report, await soak(SOAK_S, RUN_DIR, lambda line: print(line, flush=True)))


def main(arguments: Sequence[str]) -> int:
    """Entry of the command."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--peer-python", default="", help="has faster-whisper and piper-tts")
    options = parser.parse_args(arguments)
    configure_logging("bench", level="error")
    report = Report("speech")
    peer = speech_cpu.Peer(options.peer_python, 2) if options.peer_python else None
    try:
        asyncio.run(_measure(report, peer))
    finally:
        if peer is not None:
            peer.close()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
