"""Pages copied in and out: kvtier, memcpy, and one peer at a time, taking turns on the same bytes.

Each is a process of its own with one calling thread, and copies the same file's pages to pre-touched memory; the
working set is at least four times the last-level cache, and every byte is compared after each get, outside the time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from kvtier_bench import environment, peers
from kvtier_bench.contenders.contender import Task
from kvtier_bench.context import Context, Scenario
from kvtier_bench.figures import CannotRun, Figure
from kvtier_bench.memory import MIB, make_random_file, working_set_bytes
from kvtier_bench.rival import Rival
from kvtier_bench.stats import Timings, interleaved
from kvtier_bench.store import one_pool, running

PAGE_BYTES: Final = MIB
BATCH_PAGES: Final = 64
BATCH_BYTES: Final = PAGE_BYTES * BATCH_PAGES
FILL_ATTEMPTS: Final = 3
SPARE_BATCHES: Final = 2
"""Room beside what is read, for puts."""

_MOONCAKE: Final = "Mooncake Store, TCP"

Measure = Callable[[int], float]


class Match:
    """kvtier and whoever it is compared with, on one source file."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.batches = working_set_bytes(BATCH_BYTES) // BATCH_BYTES
        self.rounds = context.scaled(8 * self.batches, self.batches)
        self.memory_bytes = (self.batches + SPARE_BATCHES) * BATCH_BYTES
        """That a server needs which forgets when told."""
        self.all_bytes = self.memory_bytes + (self.rounds + 1) * BATCH_BYTES
        """And one that keeps every put."""
        self._source = context.memory / "source"
        context.need_memory(self.memory_bytes + 2 * self.all_bytes + 5 * self.batches * BATCH_BYTES)
        make_random_file(self._source, self.batches * BATCH_BYTES)

    def task(self, address: Mapping[str, str]) -> Task:
        """What every contender moves."""
        return Task(str(self._source), PAGE_BYTES, BATCH_PAGES, dict(address))

    @contextlib.contextmanager
    def ours(self) -> Iterator[Rival]:
        """kvtier, holding every batch."""
        store = self.context.store(one_pool(self.memory_bytes))
        with running(store), self.rival("kvtier", {"socket": str(store.socket())}) as rival:
            yield rival

    @contextlib.contextmanager
    def rival(self, name: str, address: Mapping[str, str], python: Path | None = None) -> Iterator[Rival]:
        """A contender that holds every batch."""
        log = self.context.disk / f"{name}.log"
        with Rival(name, self.task(address), log, *([] if python is None else [python])) as rival:
            self._fill(rival)
            yield rival

    def _fill(self, rival: Rival) -> None:
        """Store every batch, once more where one was evicted meanwhile.

        Raises CannotRun when not all can be had at once.
        """
        for attempt in range(FILL_ATTEMPTS):
            for batch in range(self.batches):
                rival.act("put", batch)
            try:
                for batch in range(self.batches):
                    rival.act("get", batch)
                return
            except CannotRun:
                if attempt == FILL_ATTEMPTS - 1:
                    raise

    def gets(self, rival: Rival, what: str = "get") -> Measure:
        """Rounds of reading, batch after batch."""
        return lambda number: rival.act(what, number % self.batches)

    def puts(self, rival: Rival, what: str = "put") -> Measure:
        """Rounds of storing, each under new keys, in memory that was in use before, as in a cache that is full."""

        def put(number: int) -> float:
            seconds = rival.act(what, number % self.batches, 1 + number)
            rival.act("drop", number % self.batches, 1 + number)
            return seconds

        for spare in range(SPARE_BATCHES):
            put(self.rounds + 1 + spare)
        return put

    def run(self, measures: dict[str, Measure]) -> dict[str, Timings]:
        """Each of them in turns, after a round that does not count."""
        for measure in measures.values():
            measure(self.rounds)
        return interleaved(measures, self.rounds)


def speed(timings: Timings) -> str:
    """For people."""
    return f"{timings.gb_per_s(BATCH_BYTES):.2f} GB/s"


def against_memcpy(context: Context) -> Iterator[Figure]:
    """get_into beside memcpy of the same arena pages, by one thread and by all."""
    match = Match(context)
    with match.ours() as ours:
        measures = {what: match.gets(ours, what) for what in ("get", "memcpy_1", "memcpy_all")}
        taken = match.run(measures)
    one, many = taken["memcpy_1"], taken["memcpy_all"]
    best = min(one.p50, many.p50)
    beside = f"{speed(taken['get'])}; memcpy {speed(one)} by one thread, {speed(many)} by all"
    yield Figure(
        "get_into_vs_memcpy", "get_into, 64 pages of 1 MiB, against memcpy", best / taken["get"].p50, "x", beside
    )
    yield Figure("get_into_gb_s", "get_into, 64 pages of 1 MiB", taken["get"].gb_per_s(BATCH_BYTES), "GB/s")
    yield Figure("get_into_ms_p99", "get_into, slowest of a hundred", taken["get"].p99 * 1e3, "ms")


def against_mooncake(context: Context) -> Iterator[Figure]:
    """Both ways beside Mooncake Store, which takes only memory that was registered with it, as staging is with us."""
    match = Match(context)
    python = environment.peer_python(context.options.peers, "mooncake")
    with (
        match.ours() as ours,
        peers.mooncake(context.options.peers, context.disk, match.memory_bytes) as master,
        match.rival("mooncake", {"master": master}, python) as mooncake,
    ):
        yield from _gets(match, ours, mooncake, _MOONCAKE, "mooncake")
        copied = match.run({"ours": match.puts(ours), "peer": match.puts(mooncake)})
        yield _ratio("put_copied_vs_mooncake", f"put of other memory against {_MOONCAKE}", copied)
        puts = match.run({"ours": match.puts(ours, "put_staged"), "peer": match.puts(mooncake)})
        yield _ratio("put_vs_mooncake", f"put of what lies in staging against {_MOONCAKE}", puts)
        yield Figure("put_gb_s", "put, 64 pages of 1 MiB in staging", puts["ours"].gb_per_s(BATCH_BYTES), "GB/s")


def against_redis(context: Context) -> Iterator[Figure]:
    """Both ways beside Redis, over the faster of its two sockets."""
    match = Match(context)
    python = environment.peer_python(context.options.peers, "redis")
    with match.ours() as ours, peers.redis(context.disk, 2 * match.memory_bytes) as urls:
        by_socket = {}
        for kind, url in urls.items():
            with match.rival("redis", {"url": url}, python) as redis:
                by_socket[kind] = interleaved({"get": match.gets(redis)}, match.batches)["get"].p50
        kind = min(by_socket, key=lambda name: by_socket[name])
        context.say(f"  redis answers faster over {kind}: {by_socket}")
        with match.rival("redis", {"url": urls[kind]}, python) as redis:
            yield from _both_ways(match, ours, redis, f"Redis, {kind} socket", "redis")


def against_files(context: Context) -> Iterator[Figure]:
    """Both ways beside plain files in the page cache."""
    match = Match(context)
    with match.ours() as ours, match.rival("files", {"folder": str(context.disk)}) as files:
        yield from _both_ways(match, ours, files, "plain files in the page cache", "files")


def against_lmcache(context: Context) -> Iterator[Figure]:
    """Both ways beside LMCache's multiprocess server, whose puts take memory that was not in use before."""
    match = Match(context)
    python = environment.peer_python(context.options.peers, "lmcache")
    with (
        match.ours() as ours,
        peers.lmcache(context.options.peers, context.disk, 2 * match.all_bytes) as url,
        match.rival("lmcache", {"url": url}, python) as lmcache,
    ):
        yield from _both_ways(match, ours, lmcache, "LMCache, shared memory", "lmcache")


def _both_ways(match: Match, ours: Rival, peer: Rival, title: str, key: str) -> Iterator[Figure]:
    yield from _gets(match, ours, peer, title, key)
    puts = match.run({"ours": match.puts(ours), "peer": match.puts(peer)})
    yield _ratio(f"put_vs_{key}", f"put against {title}", puts)


def _gets(match: Match, ours: Rival, peer: Rival, title: str, key: str) -> Iterator[Figure]:
    gets = match.run({"ours": match.gets(ours), "peer": match.gets(peer)})
    yield _ratio(f"get_vs_{key}", f"get_into against {title}", gets)


def _ratio(key: str, what: str, taken: Mapping[str, Timings]) -> Figure:
    ours, peer = taken["ours"], taken["peer"]
    return Figure(key, what, peer.p50 / ours.p50, "x", f"{speed(ours)} and {speed(peer)}")


SCENARIOS: Final = (
    Scenario(
        "memcpy",
        "get_into beside memcpy",
        ("get_into_vs_memcpy", "get_into_gb_s", "get_into_ms_p99"),
        against_memcpy,
    ),
    Scenario(
        "mooncake",
        "beside Mooncake Store",
        ("get_vs_mooncake", "put_copied_vs_mooncake", "put_vs_mooncake", "put_gb_s"),
        against_mooncake,
    ),
    Scenario("redis", "beside Redis", ("get_vs_redis", "put_vs_redis"), against_redis),
    Scenario("lmcache", "beside LMCache", ("get_vs_lmcache", "put_vs_lmcache"), against_lmcache),
    Scenario("files", "beside plain files", ("get_vs_files", "put_vs_files"), against_files),
)
