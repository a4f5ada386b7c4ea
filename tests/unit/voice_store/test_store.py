"""Stored voices: whole or absent whatever kills the process, and nothing outside the directory."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from antiphon_core.errors import AlreadyExists, FailedPrecondition, NotFound, ResourceExhausted
from antiphon_vocoder.voice_store.manifest import VOICE_ID, Consent, Manifest, new_voice_id
from antiphon_vocoder.voice_store.store import CONDITIONING, MANIFEST, SAMPLE, VoiceStore
from hypothesis import given, settings
from hypothesis import strategies as st

SAMPLE_BYTES, CONDITIONING_BYTES = b"fLaC" + bytes(999), b"codes" * 100
WRITE_STEPS = [f"wrote {SAMPLE}", f"wrote {CONDITIONING}", f"wrote {MANIFEST}", "synced", "renamed"]
DELETE_STEPS = ["renamed away", *(f"unlinked {name}" for name in (SAMPLE, CONDITIONING, MANIFEST))]


def manifest(voice_id: str = "ann", owner: str = "acme") -> Manifest:
    return Manifest(
        id=voice_id,
        display_name="Ann",
        owner=owner,
        kind="cloned",
        models=["mimi"],
        created_at=1.0,
        sample_sha256="",
        consent=Consent(statement="I agree", speaker="Ann", granted_at=0.5),
    )


def add(store: VoiceStore, voice_id: str = "ann") -> Manifest:
    return store.add(manifest(voice_id), sample=SAMPLE_BYTES, conditioning=CONDITIONING_BYTES)


def check_whole(store: VoiceStore, voice_id: str = "ann") -> None:
    assert [found.id for found in store.manifests()] == [voice_id] and not store.damaged
    assert store.sample(voice_id) == SAMPLE_BYTES
    assert store.conditioning(voice_id) == CONDITIONING_BYTES


def test_a_voice_survives_a_restart_with_all_that_was_said_of_it(tmp_path: Path) -> None:
    kept = add(VoiceStore(tmp_path / "voices"))
    store = VoiceStore(tmp_path / "voices")
    check_whole(store)
    assert store.manifests() == [kept] and len(kept.sample_sha256) == 64
    assert (tmp_path / "voices" / "ann" / MANIFEST).stat().st_mode & 0o077 == 0


def test_a_taken_id_is_refused_and_the_voice_stays(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path)
    add(store)
    with pytest.raises(AlreadyExists):
        store.add(manifest(), sample=b"other", conditioning=b"other")
    check_whole(store)
    assert os.listdir(tmp_path) == ["ann"]


def test_a_deleted_voice_is_gone_at_once_and_wholly(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path)
    add(store)
    other = VoiceStore(tmp_path)
    store.delete("ann")
    assert not other.manifests() and not os.listdir(tmp_path)
    for act in (other.delete, other.sample, other.conditioning):
        with pytest.raises(NotFound):
            act("ann")
    add(other)
    check_whole(store)


VICTIMS = """
import os, signal, sys
from pathlib import Path
from antiphon_vocoder.voice_store.store import VoiceStore
sys.path.insert(0, {tests!r})
from unit.voice_store.test_store import DELETE_STEPS, WRITE_STEPS, add, folder_of

def die_at(step, act):
    def stop(passed):
        if passed == step:
            os.kill(os.getpid(), signal.SIGKILL)
    folder = folder_of(Path({root!r}), step)
    if act == "delete":
        add(VoiceStore(folder))
    if os.fork() == 0:
        store = VoiceStore(folder, stop)
        add(store) if act == "add" else store.delete("ann")
        os._exit(1)
    _, status = os.wait()
    assert os.WTERMSIG(status) == signal.SIGKILL, (step, status)

for step in WRITE_STEPS:
    die_at(step, "add")
for step in DELETE_STEPS:
    die_at(step, "delete")
"""


def folder_of(root: Path, step: str) -> Path:
    return root / step.replace(" ", "_")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By step the store of a process that was killed there; the processes are forks of one."""
    root = tmp_path_factory.mktemp("killed")
    tests = str(Path(__file__).parents[2])
    source = VICTIMS.format(root=str(root), tests=tests)
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, timeout=60)
    assert ended.returncode == 0, ended.stderr.decode()
    return root


@pytest.mark.parametrize("step", WRITE_STEPS)
def test_a_voice_is_whole_or_absent_after_a_kill_while_it_is_written(
    step: str, killed: Path
) -> None:
    folder = folder_of(killed, step)
    store = VoiceStore(folder)
    if step == "renamed":
        check_whole(store)
    else:
        assert not store.manifests() and not os.listdir(folder)
        add(store)
        check_whole(store)


@pytest.mark.parametrize("step", DELETE_STEPS)
def test_a_voice_is_absent_after_a_kill_while_it_is_deleted(step: str, killed: Path) -> None:
    folder = folder_of(killed, step)
    store = VoiceStore(folder)
    assert not store.manifests() and not os.listdir(folder)


def test_work_in_progress_of_another_process_is_left_alone(tmp_path: Path) -> None:
    hidden = tmp_path / ".new-0123"
    hidden.mkdir()
    (hidden / SAMPLE).write_bytes(b"half")
    writer = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(writer, fcntl.LOCK_EX)
    VoiceStore(tmp_path)
    assert (hidden / SAMPLE).exists()
    os.close(writer)
    VoiceStore(tmp_path)
    assert not hidden.exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = VoiceStore(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ResourceExhausted, match="no room"):
            add(store)
    # What the full disk kept of the directory's removal is nothing that a later start sees.
    assert not VoiceStore(tmp_path).manifests() and not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (MANIFEST, b"{", "cannot be read"),
        (MANIFEST, b'{"id": "ann", "colour": 1}', "cannot be read"),
        (SAMPLE, None, "lacks sample.flac"),
    ],
)
def test_a_damaged_voice_is_left_out_and_shown(
    name: str, content: bytes | None, problem: str, tmp_path: Path
) -> None:
    store = VoiceStore(tmp_path)
    add(store)
    add(store, "bob")
    path = tmp_path / "ann" / name
    path.unlink() if content is None else path.write_bytes(content)
    assert [found.id for found in store.manifests()] == ["bob"]
    assert problem in store.damaged["ann"]


def test_a_changed_sample_is_noticed(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path)
    add(store)
    (tmp_path / "ann" / SAMPLE).write_bytes(b"fLaC other")
    with pytest.raises(ValueError, match="digest"):
        store.sample("ann")


def test_links_are_not_followed(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path / "voices")
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    add(store)
    sample = tmp_path / "voices" / "ann" / SAMPLE
    sample.unlink()
    sample.symlink_to(secret)
    with pytest.raises(OSError):
        store.sample("ann")
    (tmp_path / "voices" / "eve").symlink_to(tmp_path / "voices" / "ann")
    with pytest.raises((NotFound, OSError)):
        store.conditioning("eve")
    assert "eve" not in [found.id for found in store.manifests()]


@settings(max_examples=80, deadline=None)
@given(
    st.one_of(
        st.text(max_size=80),
        st.sampled_from(["..", ".", "", "/etc", "a/b", "a\0b", "Ann", "A", ".new-1", "a" * 65]),
    ).filter(lambda name: not VOICE_ID.fullmatch(name))
)
def test_no_other_name_reaches_the_disk(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    root = tmp_path_factory.getbasetemp() / "fuzzed"
    store = VoiceStore(root)
    try:
        for act in (store.delete, store.sample, store.conditioning):
            with pytest.raises((NotFound, ValueError)):
                act(name)
        with pytest.raises(ValueError):
            add(store, name)
        assert not os.listdir(root)
    finally:
        store.close()


def test_a_store_that_cannot_be_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FailedPrecondition) as raised:
        VoiceStore(tmp_path / "file" / "voices")
    assert raised.value.field == "voice_store_dir"


def test_ids_are_voice_ids_and_differ() -> None:
    ids = {new_voice_id() for _ in range(100)}
    assert len(ids) == 100 and all(VOICE_ID.fullmatch(found) for found in ids)
