"""Voices on disk. Several processes may use one directory; a killed one leaves no half voice.

A voice is written into a hidden directory, synced, and renamed to its id; it is deleted by
renaming it back to a hidden name first. Hidden directories are locked by the process that works
on them, so that the next start can tell a leftover from work in progress. Everything is opened
relative to a descriptor of its directory, and no link is followed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
from antiphon_core import metrics
from antiphon_core.errors import AlreadyExists, FailedPrecondition, NotFound, ResourceExhausted
from antiphon_core.logs import get_logger

from antiphon_vocoder.voice_store.manifest import VOICE_ID, Manifest

MANIFEST = "manifest.json"
CONDITIONING = "conditioning.safetensors"
SAMPLE = "sample.flac"
_LARGEST_MANIFEST = 1 << 20
_LARGEST_FILE = 1 << 28
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

log = get_logger("vocoder.voice_store")


class VoiceStore:
    """The voices under one directory, which is made when it is missing.

    Args:
        directory: where the voices lie.
        checkpoint: called with the name of each step of a write or delete; tests stop there.

    Raises:
        FailedPrecondition: the directory cannot be made or opened, naming ``voice_store_dir``.
    """

    def __init__(self, directory: Path, checkpoint: Callable[[str], None] | None = None) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._root = os.open(directory, _FOLDER)
        except OSError as error:
            raise FailedPrecondition(
                f"the voice store {directory} cannot be opened: {error.strerror}",
                field="voice_store_dir",
            ) from error
        self._checkpoint = checkpoint or (lambda step: None)
        self.damaged: dict[str, str] = {}
        """Voices that the last ``manifests`` left out, and why."""
        self._sweep()

    def close(self) -> None:
        """Gives the directory back."""
        os.close(self._root)

    def manifests(self) -> list[Manifest]:
        """Manifests of all voices that are whole, by id; the others are logged and counted once
        and stay in ``damaged``."""
        found: list[Manifest] = []
        damaged: dict[str, str] = {}
        for name in sorted(os.listdir(self._root)):
            if name.startswith("."):
                continue
            try:
                found.append(self._manifest(name))
            except FileNotFoundError:
                continue  # Deleted by another process since the listing
            except (OSError, ValueError) as error:
                damaged[name] = str(error)
                if name not in self.damaged:
                    log.error("stored_voice_skipped", voice=name, error=str(error))
                    metrics.fallback("voice", "damaged")
        self.damaged = damaged
        return found

    def add(self, manifest: Manifest, *, sample: bytes, conditioning: bytes) -> Manifest:
        """Keeps a voice; returns its manifest with the sample's digest.

        Args:
            manifest: its facts; ``sample_sha256`` is filled in.
            sample: a FLAC file.
            conditioning: a safetensors file.

        Raises:
            AlreadyExists: the id is taken.
            ResourceExhausted: MEMORY_PRESSURE, the disk is full.
        """
        manifest = msgspec.structs.replace(
            manifest, sample_sha256=hashlib.sha256(sample).hexdigest()
        )
        _check_id(manifest.id)
        files = {
            SAMPLE: sample,
            CONDITIONING: conditioning,
            MANIFEST: msgspec.json.format(msgspec.json.encode(manifest)),
        }
        try:
            self._write(manifest.id, files)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise AlreadyExists(
                    f"there is a voice {manifest.id!r} already", field="voice"
                ) from error
            if error.errno in _FULL:
                raise ResourceExhausted(
                    "the voice store has no room for another voice",
                    reason="MEMORY_PRESSURE",
                ) from error
            raise
        return manifest

    def conditioning(self, voice_id: str) -> bytes:
        """The voice's conditioning.safetensors.

        Raises:
            NotFound: VOICE_NOT_FOUND.
            ValueError: the voice is damaged.
        """
        with self._voice(voice_id) as folder:
            return _read(folder, CONDITIONING, _LARGEST_FILE)

    def sample(self, voice_id: str) -> bytes:
        """The voice's sample.flac, checked against its manifest; raises as ``conditioning``."""
        with self._voice(voice_id) as folder:
            manifest = _manifest_in(folder, voice_id)
            data = _read(folder, SAMPLE, _LARGEST_FILE)
        if hashlib.sha256(data).hexdigest() != manifest.sample_sha256:
            raise ValueError(f"the sample of voice {voice_id} does not have its recorded digest")
        return data

    def delete(self, voice_id: str) -> None:
        """Makes the voice unusable at once, then removes its files.

        Raises:
            NotFound: VOICE_NOT_FOUND.
        """
        if not VOICE_ID.fullmatch(voice_id):
            raise _unknown(voice_id)
        gone = f".gone-{secrets.token_hex(8)}"
        with self._voice(voice_id) as folder:
            fcntl.flock(folder, fcntl.LOCK_EX)
            try:
                os.rename(voice_id, gone, src_dir_fd=self._root, dst_dir_fd=self._root)
            except FileNotFoundError:
                raise _unknown(voice_id) from None
            os.fsync(self._root)
            self._checkpoint("renamed away")
            self._remove(gone, folder)

    def _manifest(self, voice_id: str) -> Manifest:
        """Raises FileNotFoundError, OSError or ValueError."""
        if not VOICE_ID.fullmatch(voice_id):
            raise ValueError(f"its name is no voice id: it must match {VOICE_ID.pattern}")
        folder = os.open(voice_id, _FOLDER, dir_fd=self._root)
        try:
            return _manifest_in(folder, voice_id)
        finally:
            os.close(folder)

    def _write(self, voice_id: str, files: Mapping[str, bytes]) -> None:
        hidden = f".new-{secrets.token_hex(8)}"
        os.mkdir(hidden, 0o700, dir_fd=self._root)
        folder = os.open(hidden, _FOLDER, dir_fd=self._root)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            for name, data in files.items():
                _write_synced(folder, name, data)
                self._checkpoint(f"wrote {name}")
            os.fsync(folder)
            self._checkpoint("synced")
            os.rename(hidden, voice_id, src_dir_fd=self._root, dst_dir_fd=self._root)
            self._checkpoint("renamed")
            os.fsync(self._root)
        except OSError:
            self._remove(hidden, folder)
            raise
        finally:
            os.close(folder)

    def _remove(self, name: str, folder: int) -> None:
        for entry in os.listdir(folder):
            os.unlink(entry, dir_fd=folder)
            self._checkpoint(f"unlinked {entry}")
        os.rmdir(name, dir_fd=self._root)
        os.fsync(self._root)

    def _sweep(self) -> None:
        """Removes what killed processes left; work of living ones is locked."""
        for name in os.listdir(self._root):
            if not name.startswith((".new-", ".gone-")):
                continue
            try:
                folder = os.open(name, _FOLDER, dir_fd=self._root)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._remove(name, folder)
                log.info("voice_leftover_removed", name=name)
            except BlockingIOError:
                continue
            except FileNotFoundError:
                continue  # Another process sweeps too
            finally:
                os.close(folder)

    @contextmanager
    def _voice(self, voice_id: str) -> Iterator[int]:
        """A descriptor of the voice's directory."""
        if not VOICE_ID.fullmatch(voice_id):
            raise _unknown(voice_id)
        try:
            folder = os.open(voice_id, _FOLDER, dir_fd=self._root)
        except (FileNotFoundError, NotADirectoryError):
            raise _unknown(voice_id) from None
        try:
            yield folder
        finally:
            os.close(folder)


def _check_id(voice_id: str) -> None:
    if not VOICE_ID.fullmatch(voice_id):
        raise ValueError(f"{voice_id!r} is no voice id: it must match {VOICE_ID.pattern}")


def _unknown(voice_id: str) -> NotFound:
    return NotFound(f"there is no voice {voice_id[:64]!r}", reason="VOICE_NOT_FOUND", field="voice")


def _manifest_in(folder: int, voice_id: str) -> Manifest:
    """The manifest of a voice's open directory; raises FileNotFoundError, OSError or ValueError."""
    missing = {MANIFEST, CONDITIONING, SAMPLE} - set(os.listdir(folder))
    if missing:
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    data = _read(folder, MANIFEST, _LARGEST_MANIFEST)
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise ValueError(f"its {MANIFEST} cannot be read: {error}") from error
    if manifest.id != voice_id:
        raise ValueError(f"its {MANIFEST} is that of {manifest.id!r}")
    return manifest


def _read(folder: int, name: str, limit: int) -> bytes:
    descriptor = os.open(name, _READ, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"its {name} has more than {limit} bytes")
    return data


def _write_synced(folder: int, name: str, data: bytes) -> None:
    descriptor = os.open(name, _NEW, 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
