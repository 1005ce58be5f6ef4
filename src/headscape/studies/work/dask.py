"""The Dask engine: a cluster of processes on this machine, or the workers of a running scheduler."""

from __future__ import annotations

import asyncio
import logging
import pydoc
import re
import secrets
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from headscape.checks import integer
from headscape.errors import HeadscapeError, InputError
from headscape.studies.work.engines import Engine, Failure, Function, attempt
from headscape.version import __version__

__all__ = ["ANSWER_SECONDS", "WORKER_ENVIRONMENT", "DaskEngine"]

ANSWER_SECONDS = 10.0
"""How long a scheduler may take to answer, and its first worker to appear."""
GONE_SECONDS = 60.0
"""How long a study waits while no worker is left, or the scheduler is gone."""
LOOK_SECONDS = 1.0
"""How often it checks."""
ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9a-fA-F:]+\]|[^\s/:\[\]]+):(\d{1,5})")
WORKER_ENVIRONMENT = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
"""One thread per worker: as many workers as cores fill a machine."""
DIED = Failure("every worker that took it died, perhaps because memory ran out")
_ONE_AT_A_TIME = threading.Lock()


class DaskEngine(Engine):
    """Units on the workers of a Dask cluster.

    A unit is done again when its worker is lost; units are idempotent and written whole or not at all, so a lost
    worker costs one unit. Without `scheduler` a cluster of `jobs` processes with one thread each is started on
    127.0.0.1 and stopped at the end.

    Raises
    ------
    InputError
        If Dask is not installed or the address is not valid.

    >>> engine = hs.DaskEngine(jobs=2)  # two processes here: hs.organize(run, engine=engine)
    >>> engine = hs.DaskEngine(scheduler="tcp://10.0.0.1:8786")  # the workers of a cluster
    >>> hs.DaskEngine(scheduler="myhost")
    Traceback (most recent call last):
    headscape.errors.InputError: 'myhost' is not the address of a scheduler; give one as tcp://HOST:PORT
    """

    def __init__(self, jobs: int = 1, scheduler: str | None = None) -> None:
        integer("jobs", jobs, low=1)
        if find_spec("distributed") is None:
            raise InputError("the engine dask needs Dask: pip install 'headscape[scale]'")
        if scheduler is not None:
            found = ADDRESS.fullmatch(scheduler)
            if found is None or not 0 < int(found[3]) < 1 << 16:
                raise InputError(f"{scheduler!r} is not the address of a scheduler; give one as tcp://HOST:PORT")
        self.jobs, self.scheduler = jobs, scheduler
        self._client: Any = None
        self._say: Callable[[str], None] = lambda _: None

    @property
    def apart(self) -> bool:
        return True

    def threads(self, asked: int | None) -> int:
        return asked or 1

    @contextmanager
    def started(self, folders: Sequence[Path | None], say: Callable[[str], None]) -> Iterator[None]:
        """Connect, and check that every worker has this headscape and sees the folders.

        Raises
        ------
        InputError
            If the data are in memory, nobody answers, there is no worker, or a worker does not fit.
        """
        known = [folder.resolve() for folder in folders if folder is not None]
        if len(known) < len(folders):
            raise InputError(
                "the engine dask works on files that all workers see, and this is only in memory; give a run directory"
            )
        with ExitStack() as stack:
            stack.enter_context(_silenced())
            self._client = stack.enter_context(
                _cluster(self.jobs) if self.scheduler is None else _connected(self.scheduler)
            )
            stack.callback(setattr, self, "_client", None)
            self._say = say
            n = len(_versions_checked(self._client))
            for folder in known:
                _folder_checked(self._client, folder)
            say(f"{n} {'worker' if n == 1 else 'workers'} at {self._client.scheduler.address}")
            yield

    def run(self, function: Function, units: Sequence[Sequence[Any]]) -> Iterator[tuple[int, Failure | None]]:
        assert self._client is not None, "the engine was not started"
        watch = _Watch(self._client, self._say)
        suspects = []
        for i, outcome in self._submitted(function, dict(enumerate(units)), watch):
            if outcome == DIED:
                suspects.append(i)
            else:
                yield i, outcome
        for i in sorted(suspects):  # Dask blames all that waited at a worker that died: each is tried on its own
            yield from self._submitted(function, {i: units[i]}, watch)
        watch.look(at_once=True)  # a worker may have been lost, and its unit done again, since the last look

    def _submitted(
        self, function: Function, units: Mapping[int, Sequence[Any]], watch: _Watch
    ) -> Iterator[tuple[int, Failure | None]]:
        """Outcomes of units that are submitted together."""
        done: SimpleQueue[Any] = SimpleQueue()
        name = f"headscape-{secrets.token_hex(6)}"
        waiting: dict[str, tuple[int, Any]] = {}
        try:
            for i, unit in units.items():
                future = self._client.submit(_on_worker, __version__, function, tuple(unit), key=f"{name}-{i}")
                waiting[future.key] = (i, future)
                future.add_done_callback(done.put)
            while waiting:
                watch.look()
                try:
                    future = done.get(timeout=LOOK_SECONDS)
                except Empty:
                    continue
                i, _ = waiting.pop(future.key)
                yield i, _outcome(future)
        finally:
            if waiting and self._client.status == "running":
                self._client.cancel([future for _, future in waiting.values()], force=True)


def _on_worker(version: str, function: Function, arguments: Sequence[Any]) -> Failure | None:
    """One unit on a worker; one at a time per process, however many threads Dask has: models and threads are shared."""
    if version != __version__:  # a worker that came when the study had begun
        return Failure(f"its worker has headscape {__version__}, this is {version}")
    with _ONE_AT_A_TIME:
        return attempt(function, arguments)


def _outcome(future: Any) -> Failure | None:
    """The outcome of a unit that Dask reports as finished."""
    from distributed import KilledWorker

    if future.status == "finished":
        found: Failure | None = future.result()
        return found
    if future.status != "error":
        return Failure(f"{future.status} by the scheduler")
    error = future.exception()
    if isinstance(error, KilledWorker):
        return DIED
    return Failure(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")


class _Watch:
    """Reports which workers are lost, and gives up when there is nobody to wait for."""

    def __init__(self, client: Any, say: Callable[[str], None]) -> None:
        self._client, self._say = client, say
        self._workers = set(client.nthreads())
        self._looked = self._alive = time.monotonic()

    def look(self, at_once: bool = False) -> None:
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS and not at_once:
            return
        self._looked = now
        try:
            workers = set(self._client.nthreads()) if self._client.status == "running" else None
        except (OSError, RuntimeError):
            workers = None
        if workers is not None:
            for lost in sorted(self._workers - workers):
                self._say(f"worker {lost} is lost; its unit is done again")
            self._workers = workers
        if workers:
            self._alive = now
        elif now - self._alive > GONE_SECONDS:
            what = "the scheduler is gone" if workers is None else "no worker is left"
            raise HeadscapeError(
                f"{what} since {GONE_SECONDS:.0f} s; when it is back the same command continues with what is missing"
            )


# --- connecting ------------------------------------------------------------------------------------------------------


@contextmanager
def _silenced() -> Iterator[None]:
    """Keep Dask's log messages below critical off the terminal, in this process and during a block."""
    import distributed  # noqa: F401 - sets its levels when imported

    loggers = [
        logging.getLogger(name)
        for name in ("distributed", "tornado", *logging.root.manager.loggerDict)
        if name.split(".")[0] in ("distributed", "tornado")
    ]
    levels = {logger: logger.level for logger in loggers}
    try:
        for logger in levels:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


@contextmanager
def _cluster(jobs: int) -> Iterator[Any]:
    """A cluster of processes of one thread each, reachable from this machine only."""
    import dask.config
    from distributed import Client, LocalCluster

    # a busy worker may be silent for long; a dead one is known by its closed socket
    settings = {"distributed.scheduler.worker-ttl": None}
    with (
        tempfile.TemporaryDirectory(prefix="headscape-dask-", ignore_cleanup_errors=True) as scratch,
        dask.config.set(settings),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        cluster = LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=jobs,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # of its health page; None would take port 8787
            silence_logs=logging.CRITICAL,
            memory_limit=0,  # units do not grow by waiting; Dask would kill those that need more than their share
            local_directory=scratch,
            env=WORKER_ENVIRONMENT,
        )
        with cluster, Client(cluster, timeout=60, set_as_default=False) as client:  # type: ignore[no-untyped-call]
            client.wait_for_workers(jobs, timeout=120)
            yield client


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """A running scheduler."""
    from distributed import Client

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with ThreadPoolExecutor(1) as apart:  # a notebook has a loop of its own running here
                kind = apart.submit(asyncio.run, _kind_of(address)).result()
            if kind != "Scheduler":
                raise InputError(f"what answers at {address} is a {kind} of Dask; give the address of its scheduler")
            client = Client(address, timeout=ANSWER_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"no Dask scheduler answered at {address} within {ANSWER_SECONDS:.0f} s ({type(error).__name__}); "
                "start one with `dask scheduler`, or leave --scheduler out"
            ) from None
        with client:
            try:
                client.wait_for_workers(1, timeout=ANSWER_SECONDS)
            except TimeoutError:
                raise InputError(
                    f"the scheduler at {address} has no worker; start some with `dask worker {address} --nthreads 1`"
                ) from None
            yield client


async def _kind_of(address: str) -> str:
    """What answers at an address, within a limit: a `Client` waits for ever for a server that accepts calls and never answers."""
    from distributed import Security, rpc

    arguments = Security().get_connection_args("client")  # type: ignore[no-untyped-call]
    async with asyncio.timeout(ANSWER_SECONDS):
        async with rpc(address, connection_args=arguments) as other:  # type: ignore[no-untyped-call]
            return str((await other.identity())["type"])


def _asked(client: Any, function: Function, *arguments: Any) -> Mapping[str, Any]:
    """The answer of every worker; an exception if it could not."""
    answers: Mapping[str, Any] = client.run(function, *arguments, on_error="return")
    return answers


def _versions_checked(client: Any) -> list[str]:
    """The workers, if all have this version of headscape."""
    # asked by a function of Python's own, which every worker has whatever else it lacks
    found = _asked(client, pydoc.locate, "headscape.version.__version__")
    for worker, version in sorted(found.items()):
        if version != __version__:
            has = f"headscape {version}" if isinstance(version, str) else "no headscape"
            raise InputError(
                f"worker {worker} has {has}, this is {__version__}; install the same version on all machines"
            )
    return sorted(found)


def _folder_checked(client: Any, folder: Path) -> None:
    """Raise unless every worker can read and write this same folder."""
    token = folder / f".headscape-{secrets.token_hex(8)}"
    try:
        token.write_text(token.name)
        for worker, answer in sorted(_asked(client, _sees, token).items()):
            if answer is not None:
                raise InputError(
                    f"worker {worker} cannot use {folder} ({answer}); the run directory must lie on a file system that "
                    "all workers share, under the same path"
                )
    finally:
        token.unlink(missing_ok=True)


def _sees(token: Path) -> str | None:
    """On a worker: None if it reads the token and may write beside it, else why not."""
    own = token.with_name(f"{token.name}-{secrets.token_hex(4)}")
    try:
        if token.read_text() != token.name:
            return "another file of that name"
        own.write_text("")
        own.unlink()
    except OSError as error:
        return error.strerror or type(error).__name__
    return None
