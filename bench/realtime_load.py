"""``python -m bench.realtime_load``: spoken sessions against any server of the realtime protocol.

A stream is one WebSocket with an open microphone: 20 ms of audio every 20 ms from the start to the
end, silence where nobody speaks. A turn is one question and the reply to it; the next question
begins when the reply would have been played. Times are taken at the client:
t0 last speech sample sent (known from the WAV), t1 speech_stopped, t2 response.created, t3 first
delta of the reply's text, t4 first delta of its audio, t5 its first audible sample in a player
that starts after 100 ms of audio.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import uvloop
from antiphon_cli.talk.audio import read_wav
from antiphon_core.errors import InvalidArgument
from antiphon_core.logs import configure_logging
from rich.console import Console
from rich.table import Table

from bench.load.__main__ import BUSY_CLIENT
from bench.load.drive import Arrivals
from bench.load.progress import RunView
from bench.realtime.caller import Manners
from bench.realtime.run import Load, run
from bench.realtime.summary import summarise
from bench.realtime.turns import Question
from bench.report import commit, machine

EPILOG = """examples:
  questions of our own voice, then eight sessions of four turns:
    antiphon say "What is the capital of France?" -o run/wavs/france.wav
    python -m bench.realtime_load ws://127.0.0.1:8080/v1/realtime --sessions 8 --turns 4 \\
        --wavs run/wavs
  a session every two seconds on average, callers who interrupt:
    python -m bench.realtime_load ws://127.0.0.1:8080/v1/realtime --sessions 30 --rate 0.5 \\
        --wavs run/wavs --turns 3 --interrupt-after 1.0
A text file beside a WAV (france.txt) holds its words; then transcripts are judged too.
"""


def parser() -> argparse.ArgumentParser:
    """All options."""
    made = argparse.ArgumentParser(
        prog="python -m bench.realtime_load",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("url", help="ws:// or wss:// address of /v1/realtime")
    made.add_argument(
        "--wavs", type=Path, nargs="+", required=True, help="16-bit WAV files, or folders of them"
    )
    made.add_argument("--sessions", type=int, default=1, help="sessions in all (default 1)")
    made.add_argument("--turns", type=int, default=3, help="questions of each (default 3)")
    made.add_argument("--rate", type=float, help="sessions a second, at Poisson times")
    made.add_argument("--interrupt-after", type=float, metavar="S", help="talk over each reply")
    made.add_argument("--pause", type=float, default=0.5, metavar="S", help="after a reply")
    made.add_argument("--frame-ms", type=int, default=20, help="length of an append (default 20)")
    made.add_argument("--patience", type=float, default=60.0, metavar="S", help="for one turn")
    made.add_argument("--model", default="", help="model named in the address")
    made.add_argument("--session", default="{}", metavar="JSON", help="fields of session.update")
    made.add_argument("--key-file", type=Path, help="file with the bearer token")
    made.add_argument("--seed", type=int, default=0, help="of the arrivals")
    made.add_argument("--json", type=Path, metavar="FILE", help="also write the result here")
    made.add_argument("--label", default="", help="a name for the run, kept in the result")
    return made


def questions(paths: list[Path]) -> list[Question]:
    """The WAVs, resampled, with the words of the text files beside them.

    Raises:
        InvalidArgument: a file that is no 16-bit WAV.
    """
    files = [
        file for path in paths for file in (sorted(path.glob("*.wav")) if path.is_dir() else [path])
    ]
    found = []
    for file in files:
        words = file.with_suffix(".txt")
        text = words.read_text(encoding="utf-8").strip() if words.exists() else ""
        found.append(Question(file.stem, read_wav(file), text))
    return found


def load(options: argparse.Namespace) -> Load:
    """The load that the options describe.

    Raises:
        ValueError: options that make no sense.
    """
    session = {
        "audio": {"input": {"transcription": {"model": "whisper-1"}}},
        **json.loads(options.session),
    }
    headers = {}
    if options.key_file is not None:
        headers["Authorization"] = f"Bearer {options.key_file.read_text(encoding='utf-8').strip()}"
    mark = "&" if "?" in options.url else "?"
    made = Load(
        options.url + (f"{mark}model={options.model}" if options.model else ""),
        questions(options.wavs),
        options.sessions,
        options.turns,
        options.rate,
        headers=headers,
        seed=options.seed,
        manners=Manners(
            options.frame_ms, options.pause, options.interrupt_after, options.patience, session
        ),
    )
    made.check()
    return made


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs, and returns the result as it is written."""
    plan = load(options)
    wall, cpu = time.perf_counter(), time.process_time()
    with RunView(
        Console(stderr=True), Arrivals(requests=plan.sessions * plan.turns), shown=OUTCOMES_SHOWN
    ) as view:
        done = await run(plan, show=view.show)
    seconds = time.perf_counter() - wall
    return {
        "kind": "realtime-load",
        "label": options.label,
        "commit": commit(),
        "machine": machine(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "options": {
            name: str(value) if isinstance(value, Path | list) else value
            for name, value in vars(options).items()
        },
        "seconds": seconds,
        "client_cpu_share": (time.process_time() - cpu) / seconds,
        **summarise(done.turns, done.event_errors),
    }


OUTCOMES_SHOWN = ("completed", "interrupted", "failed")


def print_result(result: dict[str, Any]) -> None:
    """The figures for people."""
    console = Console(soft_wrap=True)
    columns = ("mean", "p50", "p90", "p99", "max")
    table = Table("ms", *columns, title=result["label"] or None)
    rows = {**result["legs_ms"], "interruption": result["interruptions_ms"]}
    for name, row in rows.items():
        if row is not None:
            table.add_row(name.replace("_", " "), *(f"{row[key]:.0f}" for key in columns))
    console.print(table)
    counts = ", ".join(f"{count} {name}" for name, count in result["turns"].items())
    smooth = result["continuity"]
    console.print(f"turns: {counts}; {result['splits']} questions split", highlight=False)
    console.print(
        f"continuity: {smooth['share']:.1%} of {smooth['replies']} replies without a gap over "
        f"100 ms; longest {smooth['longest_gap_ms']:.0f} ms",
        highlight=False,
    )
    if result["word_error_rate"] is not None:
        console.print(f"word error rate of transcripts: {result['word_error_rate']:.3f}")
    for reason, count in {**result["errors"], **result["event_errors"]}.items():
        console.print(f"  {count} x {reason}", highlight=False)
    if result["client_cpu_share"] > BUSY_CLIENT:
        console.print(
            f"[bold]the client itself was busy for {result['client_cpu_share']:.0%} of a core: "
            "latencies hold its own delays; share the load among several processes"
        )


def main() -> int:
    """Entry point; the exit status is 1 when a turn failed or was lost, 130 after Ctrl-C."""
    configure_logging("load")
    made = parser()
    options = made.parse_args()
    try:
        result = uvloop.run(measure(options))
    except (ValueError, InvalidArgument) as error:
        made.error(str(error))
    except KeyboardInterrupt:
        return 130
    print_result(result)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if result["turns"]["failed"] or result["turns"]["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
