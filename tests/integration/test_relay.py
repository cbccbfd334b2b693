"""The relay in real time: delays, order, ends, commands, and a session of the project."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_client import EdgeClient, Mode
from netsim.control import listen, obey
from netsim.links import Gaps, LinkModel, Loss, profile
from netsim.links.direction import HEADER_BYTES
from netsim.precise_timer import PreciseTimer
from netsim.relay import Relay, split_address
from tests.support.edge import VerifierThread, asking, tiny_verifier
from tests.support.tiny_models import CHAT_TEMPLATE, write_tiny_gguf

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Far:
    """What a relay relays to: echoes, or keeps the connections for the test to play with."""

    def __init__(self, *, echo: bool = True) -> None:
        self._echo = echo
        self.taken: asyncio.Queue[Streams] = asyncio.Queue()

    async def __aenter__(self) -> Far:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._echo:
            await self.taken.put((reader, writer))
            return
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()


async def dial(address: str) -> Streams:
    return await asyncio.open_connection(*split_address(address))


@contextlib.asynccontextmanager
async def through(model: LinkModel, *, echo: bool = True, **options: Any) -> AsyncIterator[Any]:
    """A far end, a relay to it, and a connection through that."""
    async with Far(echo=echo) as far, Relay(far.address, model, **options) as relay:
        near = await dial(relay.address)
        yield far, relay, near
        near[1].transport.abort()
        await asyncio.sleep(0)


async def ask(near: Streams, data: bytes = b"x") -> float:
    """The time that an echo takes."""
    begun = time.monotonic()
    near[1].write(data)
    assert await near[0].readexactly(len(data)) == data
    return time.monotonic() - begun


async def until(what: Any, within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not what():  # noqa: ASYNC110  (what is watched tells nobody)
            await asyncio.sleep(0.005)


# ── times ────────────────────────────────────────────────────────────────────────────


def test_a_hundred_milliseconds_are_a_hundred():
    """The median of some, the best of a few attempts: other programs take the processor too.

    Plain sockets in threads at both ends, which add little of their own.
    """

    def echo() -> None:
        taken, _ = server.accept()
        with taken:
            while data := taken.recv(100):
                taken.sendall(data)

    best = 1.0
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=echo)
        thread.start()
        target = f"127.0.0.1:{server.getsockname()[1]}"
        with RelayThread(Relay(target, profile("rtt-100"))) as relay:
            with socket.create_connection(split_address(relay.address)) as near:
                near.sendall(b"x")
                near.recv(1)
                for _ in range(6):
                    times = []
                    for _ in range(15):
                        begun = time.monotonic()
                        near.sendall(bytes(20))
                        near.recv(100)
                        times.append(time.monotonic() - begun)
                    assert min(times) > 0.0998
                    best = min(best, abs(statistics.median(times) - 0.1))
                    if best <= 0.001:
                        break
            thread.join()
    assert best <= 0.001


async def test_connecting_takes_its_round_trip():
    async with Far() as far, Relay(far.address, profile("rtt-100")) as relay:
        begun = time.monotonic()
        near = await dial(relay.address)
        await ask(near)
        assert 0.2 - 0.001 <= time.monotonic() - begun < 0.3
        near[1].close()


async def test_a_server_that_speaks_first_is_heard_after_a_round_trip():
    async with Far(echo=False) as far, Relay(far.address, profile("rtt-100")) as relay:
        begun = time.monotonic()
        near = await dial(relay.address)
        _, writer = await far.taken.get()
        writer.write(b"hello")
        assert await near[0].readexactly(5) == b"hello"
        assert 0.1 - 0.001 <= time.monotonic() - begun < 0.2
        near[1].close()
        writer.close()


async def test_a_rate_is_kept():
    model = LinkModel.symmetric(0.0, rate_bit_s=8e6, queue_bytes=100_000)
    async with through(model, echo=False) as (far, _, near):
        begun = time.monotonic()
        near[1].write(bytes(500_000))
        reader, writer = await far.taken.get()
        await reader.readexactly(500_000)
        took = time.monotonic() - begun
        writer.close()
    assert 0.5 < took < 1.0


async def test_the_timer_is_never_early_and_seldom_late():
    loop = asyncio.get_running_loop()
    late: list[float] = []
    fired = asyncio.Event()
    timer = PreciseTimer(loop, fired.set)
    try:
        for i in range(60):
            fired.clear()
            when = loop.time() + 0.001 + i * 0.00013
            timer.set(when)
            await fired.wait()
            late.append(loop.time() - when)
        fired.clear()
        timer.set(loop.time() + 0.01)
        timer.clear()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fired.wait(), 0.05)
        timer.set(loop.time() - 1.0)  # a time that has passed already
        await asyncio.wait_for(fired.wait(), 1)
    finally:
        timer.close()
    assert min(late) > -1e-6
    assert sorted(late)[10] < 0.002


# ── what is carried ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["rtt-0", "rtt-20", "wifi-bad", "lossy"])
async def test_thousands_of_messages_arrive_whole_and_in_order(name):
    lossy = LinkModel.symmetric(0.01, name="lossy", loss=Loss(0.05, 3))
    rng = random.Random(1)
    messages = [rng.randbytes(rng.randrange(1, 300)) for _ in range(4000)]
    async with through(lossy if name == "lossy" else profile(name)) as (_, relay, near):

        async def write() -> None:
            for i, message in enumerate(messages):
                near[1].write(message)
                if i % 50 == 0:
                    await asyncio.sleep(0.001)
            near[1].write_eof()

        writing = asyncio.create_task(write())
        assert await near[0].read(-1) == b"".join(messages)
        await writing
        stats = relay.stats()
    assert stats["bytes_up"] == stats["bytes_down"] == sum(map(len, messages))


async def test_what_is_on_the_wire_is_counted_with_its_headers():
    async with through(profile("rtt-20")) as (_, relay, near):
        handshake = relay.stats()["wire_up"]
        assert 40 <= handshake <= 100
        for sent in range(1, 4):
            near[1].write(b"x" * 100)
            await near[0].readexactly(100)
            assert relay.stats()["wire_up"] == handshake + sent * (100 + HEADER_BYTES)
        stats = relay.stats()
    assert stats["wire_up"] == stats["wire_down"]
    assert stats["bytes_up"] == stats["bytes_down"] == 300


async def test_a_half_close_is_passed_on_and_the_other_half_goes_on():
    async with through(profile("rtt-20"), echo=False) as (far, relay, near):
        near[1].write(b"all I have")
        near[1].write_eof()
        reader, writer = await far.taken.get()
        assert await reader.read(-1) == b"all I have"
        for part in (b"and ", b"yet ", b"more"):
            writer.write(part)
            await asyncio.sleep(0.03)
        writer.close()
        assert await near[0].read(-1) == b"and yet more"
        await until(lambda: relay.stats()["open"] == 0)


async def test_a_reset_is_passed_on_when_it_would_be_there():
    async with through(profile("rtt-100"), echo=False) as (far, relay, near):
        near[1].write(b"x")
        reader, writer = await far.taken.get()
        await reader.readexactly(1)
        begun = time.monotonic()
        near[1].transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
        )
        near[1].transport.abort()
        with pytest.raises(ConnectionError):
            await reader.readexactly(1)
        assert time.monotonic() - begun >= 0.049
        assert relay.stats()["open"] == 0
        writer.transport.abort()


async def test_who_left_after_a_half_close_is_found_out_by_an_answer():
    async with through(profile("rtt-20"), echo=False) as (far, relay, near):
        near[1].write(b"x")
        near[1].write_eof()
        reader, writer = await far.taken.get()
        assert await reader.read(-1) == b"x"
        near[1].transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
        )
        near[1].transport.abort()
        await asyncio.sleep(0.01)
        writer.write(b"anybody there?")
        await until(lambda: relay.stats()["open"] == 0)
        writer.transport.abort()


async def test_a_target_that_is_not_there_resets():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    async with Relay(address, profile("rtt-10")) as relay:
        reader, writer = await dial(relay.address)
        with pytest.raises(ConnectionError):
            await reader.readexactly(1)
        assert relay.stats()["refused"] == 1
        assert relay.stats()["open"] == 0
        writer.transport.abort()


async def test_a_sender_is_made_to_wait_and_nothing_is_missing():
    """The far end reads nothing: what the relay keeps stays bounded."""
    async with through(profile("rtt-1"), echo=False, buffer_bytes=100_000) as (far, relay, near):
        size = 30_000_000
        near[1].write(bytes(size))
        reader, writer = await far.taken.get()
        await asyncio.sleep(0.5)
        (connection,) = relay.connections
        kept = sum(pipe._size for pipe in connection.pipes)
        kept += sum(p.sink.get_write_buffer_size() for p in connection.pipes if p.sink)
        assert kept < 1_500_000
        assert relay.stats()["bytes_up"] < size
        await reader.readexactly(size)
        assert relay.stats()["bytes_up"] == size
        writer.close()


# ── commands ─────────────────────────────────────────────────────────────────────────


async def test_cut_resets_both_ends_and_new_connections_work():
    async with through(profile("rtt-10"), echo=False) as (far, relay, near):
        near[1].write(b"x")
        reader, writer = await far.taken.get()
        await reader.readexactly(1)
        assert relay.cut() == 1
        for side in (reader, near[0]):
            with pytest.raises(ConnectionError):
                await side.readexactly(1)
        assert relay.stats()["cut"] == 1
        again = await dial(relay.address)
        again[1].write(b"y")
        reader, more = await far.taken.get()
        assert await reader.readexactly(1) == b"y"
        for each in (writer, more, again[1]):
            each.transport.abort()


async def test_a_stall_ends_by_itself_and_loses_nothing():
    async with through(profile("rtt-10")) as (_, relay, near):
        await ask(near)
        relay.stall(0.4)
        begun = time.monotonic()
        assert await ask(near, b"held back") >= 0.39
        assert time.monotonic() - begun < 1.0
        assert await ask(near) < 0.3


async def test_resume_ends_a_stall():
    async with through(profile("rtt-10")) as (_, relay, near):
        await ask(near)
        relay.stall()
        waiting = asyncio.create_task(ask(near, b"held back"))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        relay.resume()
        assert 0.2 <= await waiting < 0.6


async def test_a_connection_made_during_a_stall_waits_for_its_end():
    async with Far() as far, Relay(far.address, profile("rtt-10")) as relay:
        relay.stall(0.3)
        near = await dial(relay.address)
        assert await ask(near) >= 0.25
        near[1].close()


async def test_half_open_forwards_nothing_until_resume_and_new_ones_work():
    async with through(profile("rtt-10")) as (_, relay, near):
        await ask(near)
        assert relay.half_open() == 1
        waiting = asyncio.create_task(ask(near, b"into the void"))
        other = await dial(relay.address)
        await ask(other)
        assert not waiting.done()
        assert relay.stats()["open"] == 2
        relay.resume()
        await asyncio.wait_for(waiting, 5)
        other[1].transport.abort()


async def test_half_open_hides_even_a_reset():
    async with through(profile("rtt-10"), echo=False) as (far, relay, near):
        near[1].write(b"x")
        reader, writer = await far.taken.get()
        await reader.readexactly(1)
        relay.half_open()
        near[1].transport.abort()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.2)
        writer.transport.abort()


async def test_another_profile_takes_effect_at_once_and_keeps_order():
    async with through(profile("rtt-300")) as (_, relay, near):
        await ask(near)
        near[1].write(b"slow")
        await asyncio.sleep(0.02)
        relay.use(profile("rtt-0"))
        near[1].write(b"fast")
        assert await near[0].readexactly(8) == b"slowfast"
        assert await ask(near) < 0.1
        assert relay.stats()["profile"] == "rtt-0"


async def test_a_dead_link_can_be_brought_back():
    async with through(profile("rtt-10")) as (_, relay, near):
        await ask(near)
        relay.use(LinkModel.symmetric(0.01, name="dead", loss=Loss(1.0)))
        waiting = asyncio.create_task(ask(near, b"lost"))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        relay.use(profile("rtt-10"))
        await asyncio.wait_for(waiting, 5)
        assert await ask(near) < 0.3


async def test_outages_come_at_the_same_time_for_all():
    model = LinkModel.symmetric(0.002, outages=Gaps(fixed=((0.3, 0.7),)))
    async with Far() as far, Relay(far.address, model) as relay:
        nears = [await dial(relay.address) for _ in range(3)]
        for near in nears:
            await ask(near)
        await asyncio.sleep(max(0.0, 0.35 - relay.now()))
        assert all(took > 0.2 for took in await asyncio.gather(*map(ask, nears)))
        for near in nears:
            near[1].close()


async def test_words_for_a_running_relay():
    quits: list[int] = []
    async with through(profile("rtt-10")) as (_, relay, near):
        await ask(near)

        def say(line: str) -> str:
            return obey(relay, line, lambda: quits.append(1))

        assert say("stall 0.1") == "ok stalled for 0.1 s"
        assert say("resume") == "ok"
        assert say("profile 3g") == "ok 3g"
        assert say("half-open") == "ok 1 connections half open"
        assert json.loads(say("stats").removeprefix("ok "))["profile"] == "3g"
        assert say("cut") == "ok 1 connections cut"
        assert "half-open" in say("help")
        assert say("quit") == "ok"
        for wrong in (
            *("", "stal 3", "stall x", "stall -1", "stall nan", "stall inf", "stall 1 2"),
            *("cut 5", "profile", "profile 4g-wek", "CUT all", "\x00\xff"),
        ):
            assert say(wrong).startswith("error: ")
        assert "did you mean 'stall'" in say("stal 3")
    assert quits == [1]


async def test_the_control_port_answers_each_line_and_stays_on_the_loopback():
    async with Far() as far, Relay(far.address, profile("rtt-0")) as relay:
        server = await listen(relay, "127.0.0.1:0", lambda: None)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.write(b"profile rtt-5\nnonsense\nstats\n")
        assert await reader.readline() == b"ok rtt-5\n"
        assert (await reader.readline()).startswith(b"error: ")
        assert b'"profile": "rtt-5"' in await reader.readline()
        writer.write(b"x" * 5000)  # no line is that long
        assert await reader.read() == b"error: no command is that long\n"
        writer.close()
        server.close()
        for address in ("0.0.0.0:0", "192.0.2.1:5", "example.org:5"):
            with pytest.raises(ValueError, match="loopback"):
                await listen(relay, address, lambda: None)


@pytest.mark.parametrize("address", ["", "7710", "host", "host:", "host:x", "host:99999", "::1:5"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ValueError, match="address"):
        split_address(address)


def test_addresses():
    assert split_address("127.0.0.1:7710") == ("127.0.0.1", 7710)
    assert split_address("[::1]:7710") == ("::1", 7710)
    assert split_address(":7710") == ("127.0.0.1", 7710)


# ── the project through it ───────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("relay")
    write_tiny_gguf(folder / "target.gguf", chat_template=CHAT_TEMPLATE, context=512)
    write_tiny_gguf(folder / "draft.gguf", chat_template=CHAT_TEMPLATE, context=512, noise=0.1)
    return folder


@pytest.fixture(scope="module")
def verifier(folder: Path) -> Iterator[VerifierThread]:
    with tiny_verifier(folder / "target.gguf") as verifier:
        yield verifier


class RelayThread:
    """A relay with a loop of its own, for clients that block."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def __enter__(self) -> Relay:
        self._thread.start()
        self.run(self.relay.__aenter__())
        return self.relay

    def __exit__(self, *_: object) -> None:
        self.run(self.relay.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.RUN_AHEAD, Mode.STREAM])
@pytest.mark.parametrize("name", ["rtt-30", "lossy"])
def test_a_session_through_it_gives_the_same_ids(folder, verifier, mode, name):
    model = profile(name) if name != "lossy" else LinkModel.symmetric(0.02, loss=Loss(0.03, 2))
    draft = str(folder / "draft.gguf")
    options = asking(48)
    with EdgeClient(verifier.address) as client:
        direct = client.generate("A long tale", options=options)
    with (
        RelayThread(Relay(verifier.address, model, seed=3)) as relay,
        EdgeClient(relay.address, draft=draft) as client,
    ):
        relayed = client.generate("A long tale", options=asking(48, mode=mode))
        assert relay.stats()["accepted"] >= 1
    assert relayed.token_ids == direct.token_ids


# ── the command ──────────────────────────────────────────────────────────────────────


def proxy(*words: str) -> list[str]:
    run = "import sys; from netsim.cli import main; sys.exit(main())"
    return [sys.executable, "-c", run, "proxy", *words]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_the_command_relays_and_ends_cleanly(number, code):
    with socket.create_server(("127.0.0.1", 0)) as far:
        target = f"127.0.0.1:{far.getsockname()[1]}"
        words = ("--profile", "rtt-20", "--target", target, "--control", "127.0.0.1:0")
        with subprocess.Popen(
            proxy(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            control = process.stdout.readline().removeprefix("control on ").strip()
            ready = process.stdout.readline()
            assert ready.startswith("ready on 127.0.0.1:")
            address = ready.split()[2].rstrip(":")
            with (
                socket.create_connection(split_address(address)) as near,
                socket.create_connection(split_address(control)) as words_to,
            ):
                near.sendall(b"hello")
                far.settimeout(10)
                taken, _ = far.accept()
                with taken:
                    assert taken.recv(5) == b"hello"
                    words_to.sendall(b"stats\n")
                    assert b'"accepted": 1' in words_to.recv(4096)
                    begun = time.monotonic()
                    process.send_signal(number)
                    assert process.wait(10) == code
                    assert time.monotonic() - begun < 2
            assert process.stderr is not None
            assert json.loads(process.stderr.read())["accepted"] == 1


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--target", "nowhere"), "HOST:PORT"),
        (("--target", "127.0.0.1:1", "--profile", "4g-wek"), "4g-weak"),
        (("--target", "127.0.0.1:1", "--listen", "127.0.0.1:99999"), "HOST:PORT"),
        (("--target", "127.0.0.1:1", "--control", "0.0.0.0:0"), "loopback"),
        (("--target", "127.0.0.1:1", "--seed", "x"), "--seed"),
        ((), "--target"),
    ],
)
def test_wrong_arguments_are_said_and_end_with_2(words, part):
    done = subprocess.run(proxy(*words), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_commands_from_stdin():
    done = subprocess.run(
        proxy("--target", "127.0.0.1:1", "--profile", "rtt-5", "--commands"),
        input="stats\nprofil\nquit\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert "did you mean 'profile'" in done.stderr
    assert "ready on" in done.stdout
