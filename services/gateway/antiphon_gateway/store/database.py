"""The connection to the store: opened late, watched each second, lost and found again."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy
from antiphon_core import metrics
from antiphon_core.errors import FailedPrecondition, Unavailable
from antiphon_core.logs import get_logger
from sqlalchemy import event, exc
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from antiphon_gateway.store.blobs import BlobFolder
from antiphon_gateway.store.schema import store_identity
from antiphon_gateway.store.settings import StoreSettings

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

WATCH_SECONDS = 1.0
_SQLITE_FILE = "gateway.sqlite3"
_MIGRATIONS = Path(__file__).parent / "migrations"
_MIGRATION_LOCK = 0x616E7469
"""Key of the advisory lock under which one replica migrates PostgreSQL."""

log = get_logger(__name__)

_available = metrics.gauge("store_available", "1 while the store answers, 0 while it is lost")
_losses = metrics.counter("store_losses_total", "Times that the store stopped answering")


def store_lost(detail: str) -> Unavailable:
    """The refusal of what needs the store while it does not answer."""
    return Unavailable(
        f"the store does not answer: {detail}", reason="STORE_UNAVAILABLE", retry_after=1.0
    )


class Store:
    """Transactions over SQLite or PostgreSQL, and the folder of contents.

    ``start`` returns at once; until the store has answered, and whenever it stops answering,
    ``is_available`` is False and transactions raise Unavailable without trying.

    Args:
        settings: with a directory.
    """

    def __init__(self, settings: StoreSettings) -> None:
        assert settings.directory is not None
        self._settings = settings
        self._directory = settings.directory
        self._engine: AsyncEngine | None = None
        self._task: asyncio.Task[None] | None = None
        self._detail = "it is being opened"
        self._writers = asyncio.Lock()
        """SQLite has one writer at a time and lets the others find out by themselves when it is
        their turn, in no order; here they queue."""
        self.blobs = BlobFolder(self._directory / "blobs")
        self.is_available = False
        self.changed = asyncio.Event()
        """Set when the store is found again; whoever waits clears it."""

    @property
    def is_shared(self) -> bool:
        """Whether other replicas may use the same rows."""
        return bool(self._settings.url)

    def start(self) -> None:
        """Opens and watches the store in the background."""
        self._task = asyncio.create_task(self._watch(), name="store")

    async def open(self) -> None:
        """Opens the store once, migrating it where needed.

        Raises:
            Unavailable: STORE_UNAVAILABLE.
            FailedPrecondition: the folder cannot be used, or belongs to another database.
        """
        try:
            await asyncio.to_thread(self.blobs.prepare)
        except OSError as error:
            raise FailedPrecondition(
                f"the store's directory {self._directory} cannot be used: {error.strerror}",
                field="store.directory",
            ) from None
        if self._engine is None:
            self._engine = self._new_engine()
        async with self._answering(), self._engine.begin() as connection:
            await connection.run_sync(_migrate)
            await connection.run_sync(self._check_identity)
        self._found()

    def _check_identity(self, connection: Connection) -> None:
        """Ties the folder to the database: contents without a row are removed in time, and must
        not be because the rows are in another database."""
        known = connection.execute(sqlalchemy.select(store_identity.c.id)).scalar()
        claimed = self.blobs.owner()
        if known is None and claimed is None:
            known = uuid.uuid4().hex
            connection.execute(store_identity.insert().values(id=known))
        if known is not None and claimed is None:
            self.blobs.claim(known)
        elif claimed != known:
            raise FailedPrecondition(
                f"the files in {self._directory} belong to another database than the one "
                "configured; use that one, or another directory",
                field="store.directory",
            )

    async def close(self) -> None:
        """Ends watching and closes the connections."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._engine is not None:
            await self._engine.dispose()
        self.is_available = False

    def require_available(self) -> None:
        """Asked before work whose result is to be kept.

        Raises:
            Unavailable: STORE_UNAVAILABLE.
        """
        if not self.is_available:
            raise store_lost(self._detail)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A transaction, committed at the end of the block.

        Raises:
            Unavailable: STORE_UNAVAILABLE; nothing was written.
        """
        async with self._transaction(immediate=True) as connection:
            yield connection

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A consistent view; raises as ``write``."""
        async with self._transaction(immediate=False) as connection:
            yield connection

    @asynccontextmanager
    async def _transaction(self, *, immediate: bool) -> AsyncIterator[AsyncConnection]:
        self.require_available()
        assert self._engine is not None
        turn = self._writers if immediate and not self.is_shared else nullcontext()
        async with turn, self._answering(), self._engine.connect() as connection:
            # SQLite takes its write lock at the start: a later upgrade could fail as "locked".
            await connection.execution_options(immediate=immediate)
            async with connection.begin():
                yield connection

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        """Turns what a lost store raises into Unavailable and remembers the loss."""
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                yield
        except exc.TimeoutError:
            raise store_lost("all connections to it are busy") from None
        except (exc.OperationalError, exc.InterfaceError, OSError) as error:
            raise self._lost(error) from None
        except exc.DBAPIError as error:
            if error.connection_invalidated or isinstance(error.orig, OSError):
                raise self._lost(error) from None
            raise

    def _lost(self, error: Exception) -> Unavailable:
        cause = getattr(error, "orig", None) or error
        self._detail = f"{type(cause).__name__}: {cause}"[:200] if str(cause) else "time limit"
        if self.is_available:
            _losses.inc()
            log.error("store_lost", error=self._detail)
        self.is_available = False
        _available.set(0)
        return store_lost(type(cause).__name__)

    def _found(self) -> None:
        if not self.is_available:
            log.info("store_available", kind="postgresql" if self.is_shared else "sqlite")
        self.is_available = True
        _available.set(1)
        self.changed.set()

    async def _watch(self) -> None:
        is_open = False
        while True:
            try:
                if not is_open:
                    await self.open()
                    is_open = True
                else:
                    await self._ping()
            except Unavailable as error:
                if not is_open:
                    log.error("store_unavailable", error=self._detail, message=error.message)
            except FailedPrecondition as error:
                self._detail = error.message
                log.error("store_unavailable", error=error.message)
            except Exception:
                # A defect or a foreign schema: said each time, and tried again.
                log.exception("store_failed")
            await asyncio.sleep(WATCH_SECONDS)

    async def _ping(self) -> None:
        assert self._engine is not None
        async with self._answering(), self._engine.connect() as connection:
            await connection.exec_driver_sql("SELECT 1")
        self._found()

    def _new_engine(self) -> AsyncEngine:
        timeout = self._settings.timeout_seconds
        if self._settings.url:
            url = sqlalchemy.make_url(self._settings.url).set(drivername="postgresql+asyncpg")
            return create_async_engine(
                url,
                pool_size=8,
                pool_timeout=timeout / 2,
                connect_args={"timeout": timeout, "command_timeout": timeout},
            )
        engine = create_async_engine(
            sqlalchemy.URL.create("sqlite+aiosqlite", database=str(self._directory / _SQLITE_FILE)),
            pool_size=4,
            pool_timeout=timeout / 2,
            connect_args={"timeout": timeout},
        )
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # SQLAlchemy's begin event opens transactions instead
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _migrate(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
