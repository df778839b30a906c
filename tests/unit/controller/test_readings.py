"""Reading engines: who is asked, in which order, how often, and what comes of every failure."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest

from plimsoll.controller import readings
from plimsoll.controller.cluster import Refused, Retry
from plimsoll.controller.fetch import Unreachable
from plimsoll.controller.readings import LOG_BYTES, MAX_PODS, EngineReader
from plimsoll.core.drift import INFO, LOG, METRICS, PodReading
from plimsoll.core.engines.readback import Reading
from tests.unit.controller.fake_cluster import FakeCluster

NAMESPACE = "default"
PORT = 8000
VLLM_METRICS = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="512"} 1.0\nvllm:num_requests_running 3.0\n'
SGLANG_INFO = b'{"max_total_num_tokens": 90112}'
LIGHTLLM_LOG = "INFO 12-01 [manager.py:193] set shm_max_total_token_num value to 90112\n"


def pod(name: str = "p", ip: str | None = "10.0.0.5", **changes: Any) -> dict[str, Any]:
    status: dict[str, Any] = {
        "conditions": [{"type": "Ready", "status": changes.get("ready", "True")}],
        "containerStatuses": [
            {"name": "sidecar", "restartCount": 77},
            {"name": "server", "restartCount": changes.get("restarts", 0)},
        ],
    }
    if ip is not None:
        status["podIP"] = ip
    metadata = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}"}
    if changes.get("leaving"):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}


@dataclass
class World:
    """A reader whose endpoints, logs and clock belong to the test."""

    answers: dict[str, Any] = field(default_factory=dict)  # path -> bytes, None or an exception
    asked: list[str] = field(default_factory=list)
    logs: list[tuple[str, str, int]] = field(default_factory=list)
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.cluster = FakeCluster()
        self.reader = EngineReader(self, self.fetch, lambda: self.now)  # type: ignore[arg-type]

    async def fetch(self, url: str) -> bytes | None:
        self.asked.append(url)
        answer = self.answers.get("/" + url.split("/", 3)[3])
        if isinstance(answer, Exception):
            raise answer
        assert answer is None or isinstance(answer, bytes)
        return answer

    async def pod_log(
        self, namespace: str, name: str, container: str, *, limit_bytes: int
    ) -> str | None:
        self.logs.append((name, container, limit_bytes))
        return await self.cluster.pod_log(namespace, name, container, limit_bytes=limit_bytes)

    def log(self, text: str | Exception, name: str = "p") -> None:
        self.cluster.put(pod(name))
        self.cluster.logs[NAMESPACE, name, "server"] = text

    async def read(self, *pods: dict[str, Any], engine: str = "VLLM", **more: Any) -> Any:
        return await self.reader.read(pods or [pod()], engine, PORT, **more)

    async def one(self, engine: str = "VLLM", **more: Any) -> PodReading:
        (reading,) = await self.read(engine=engine, **more)
        assert isinstance(reading, PodReading)
        return reading

    def paths(self) -> list[str]:
        paths = ["/" + url.split("/", 3)[3] for url in self.asked]
        self.asked.clear()
        return paths


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    "raw",
    [
        pod(ready="False"),
        pod(ready="Unknown"),
        pod(leaving=True),
        pod(ip=None),
        pod(ip="not an address"),
        pod(ip="127.0.0.1"),
        pod(ip="::1"),
        pod(ip="::ffff:127.0.0.1"),
        pod(ip="169.254.169.254"),  # the metadata service of clouds
        pod(ip="::ffff:169.254.169.254"),
        pod(ip="fe80::1"),
        pod(ip="224.0.0.1"),
        pod(ip="0.0.0.0"),
        {"metadata": {"name": "p", "namespace": NAMESPACE, "uid": "u"}},
    ],
)
async def test_who_is_not_asked(world: World, raw: dict[str, Any]) -> None:
    assert await world.read(raw) == ()
    assert (world.asked, world.logs) == ([], [])


@pytest.mark.parametrize(
    ("ip", "url"),
    [
        ("10.0.0.5", "http://10.0.0.5:8000/metrics"),
        ("fd00::5", "http://[fd00::5]:8000/metrics"),
        ("::ffff:10.0.0.5", "http://10.0.0.5:8000/metrics"),
    ],
)
async def test_the_address(world: World, ip: str, url: str) -> None:
    await world.read(pod(ip=ip))
    assert world.asked == [url]


async def test_the_first_pods_by_name(world: World) -> None:
    world.answers["/metrics"] = VLLM_METRICS
    names = [f"p{n:02}" for n in range(MAX_PODS + 3)]
    found = await world.read(*(pod(name) for name in reversed(names)), pod("a", ready="False"))
    assert [reading.pod for reading in found] == names[:MAX_PODS]
    assert len(world.asked) == MAX_PODS
    assert len(world.reader._known) == MAX_PODS


WHOLE = Reading(tokens=8192, blocks=512, block_tokens=16)
SILENT_LOG = "the head of its log holds no size of the KV cache"


@pytest.mark.parametrize(
    ("engine", "answers", "log", "asked", "wanted"),
    [
        ("VLLM", {"/metrics": VLLM_METRICS}, None, ["/metrics"], (WHOLE, METRICS, None)),
        (
            "VLLM",  # its statistics are switched off
            {"/metrics": b"python_info 1.0\n"},
            "GPU KV cache size: 8,192 tokens",
            ["/metrics"],
            (Reading(tokens=8192), LOG, None),
        ),
        (
            "VLLM",
            {"/metrics": b"python_info 1.0\n"},
            "INFO nothing",
            ["/metrics"],
            (Reading(), None, f"/metrics tell no size; {SILENT_LOG}"),
        ),
        (
            "SGLang",
            {"/server_info": SGLANG_INFO},
            None,
            ["/server_info"],
            (Reading(tokens=90_112), INFO, None),
        ),
        (
            "SGLang",
            {"/get_server_info": SGLANG_INFO},
            None,
            ["/server_info", "/get_server_info"],
            (Reading(tokens=90_112), INFO, None),
        ),
        (
            "SGLang",
            {"/metrics": b'sglang:max_total_num_tokens{tp_rank="0"} 90112.0'},
            None,
            ["/server_info", "/get_server_info", "/metrics"],
            (Reading(tokens=90_112), METRICS, None),
        ),
        # Where nobody answers, the other paths are not tried.
        (
            "SGLang",
            {"/server_info": Unreachable("nothing in 3 s")},
            "max_total_num_tokens=90112, chunked_prefill_size=8192",
            ["/server_info"],
            (Reading(tokens=90_112), LOG, None),
        ),
        (
            "SGLang",
            {"/server_info": Unreachable("nothing in 3 s")},
            None,
            ["/server_info"],
            (
                Reading(),
                None,
                f"http://10.0.0.5:8000 does not answer (nothing in 3 s); {SILENT_LOG}",
            ),
        ),
        # Its endpoint repeats the flag, which proves nothing.
        (
            "LightLLM",
            {"/get_server_info": b'{"max_total_token_num": 100000}'},
            LIGHTLLM_LOG,
            [],
            (Reading(tokens=90_112), LOG, None),
        ),
        ("LightLLM", {}, None, [], (Reading(), None, SILENT_LOG)),
        ("LightLLM", {}, Retry("away"), [], (Reading(), None, "its log could not be read")),
        (
            "LightLLM",
            {},
            Refused(403, "Forbidden", "pods/log is forbidden" + "!" * 999),
            [],
            (Reading(), None, "its log may not be read: pods/log is forbidden" + "!" * 179),
        ),
        ("no such engine", {}, "GPU KV cache size: 5 tokens", [], (Reading(), None, SILENT_LOG)),
        # Nonsense.
        *(
            (
                "SGLang",
                dict.fromkeys(("/server_info", "/get_server_info"), body),
                None,
                ["/server_info", "/get_server_info", "/metrics"],
                (
                    Reading(),
                    None,
                    f"/server_info and /get_server_info and /metrics tell no size; {SILENT_LOG}",
                ),
            )
            for body in (
                b"",
                b"{",
                b"[1]",
                b"\xff\xfe",
                b'{"max_total_num_tokens": "many"}',
                b'"max_total_num_tokens 5"',
                b"[" * 100_000,
                b'{"max_total_num_tokens": ' + b"9" * 10_000 + b"}",
            )
        ),
    ],
)
async def test_where_it_is_read(
    world: World,
    engine: str,
    answers: dict[str, Any],
    log: str | Exception | None,
    asked: list[str],
    wanted: tuple[Reading, str | None, str | None],
) -> None:
    world.answers = answers
    if log is not None:
        world.log(log)
    reading = await world.one(engine)
    assert (reading.found, reading.source, reading.failure) == wanted
    assert (reading.pod, reading.uid, reading.running) == ("p", "uid-p", None)
    assert world.paths() == asked


async def test_the_log_is_the_servers_and_its_head(world: World) -> None:
    world.log("x" * (LOG_BYTES - 10) + "\n" + LIGHTLLM_LOG)
    assert (await world.one("LightLLM")).source is None
    assert world.logs == [("p", "server", LOG_BYTES)]


async def test_a_good_reading_is_kept_for_five_minutes(world: World) -> None:
    world.answers["/metrics"] = VLLM_METRICS
    first = await world.one()
    world.now += 299
    assert await world.one() == first
    assert world.paths() == ["/metrics"]
    world.answers["/metrics"] = VLLM_METRICS.replace(b"512", b"256")
    world.now += 1
    assert (await world.one()).found.blocks == 256
    assert world.paths() == ["/metrics"]


async def test_a_refresh_that_fails_forgets_nothing(world: World) -> None:
    world.answers["/metrics"] = VLLM_METRICS
    first = await world.one()
    world.answers.clear()
    for _ in range(3):
        world.now += 400
        assert await world.one() == first
    assert len(world.paths()) == 4
    assert world.logs == []


async def test_what_a_log_said_is_not_read_again(world: World) -> None:
    world.log(LIGHTLLM_LOG)
    first = await world.one("LightLLM")
    world.log("the log was rotated\n")
    for _ in range(20):
        world.now += 500
        assert await world.one("LightLLM") == first
    assert len(world.logs) == 1


async def test_who_told_by_its_log_is_not_asked_again(world: World) -> None:
    world.log("GPU KV cache size: 8,192 tokens")
    await world.one()
    assert world.paths() == ["/metrics"]
    world.now += 500
    assert (await world.one()).source == LOG
    assert world.paths() == []


async def test_after_a_success_the_pauses_are_short_again(world: World) -> None:
    for _ in range(4):
        await world.one()
        world.now += 300
    world.answers["/metrics"] = VLLM_METRICS
    await world.one()
    world.answers.clear()
    world.now += 300
    await world.one()
    world.paths()
    world.now += 20
    await world.one()
    assert world.paths() == ["/metrics"]


async def test_a_failure_is_tried_again_later_and_later(world: World) -> None:
    tries = []
    for second in range(1200):
        world.now = 1000.0 + second
        assert (await world.one("LightLLM")).failure == SILENT_LOG
        if world.logs:
            tries.append(second)
            world.logs.clear()
    assert tries == [0, 20, 60, 140, 300, 600, 900]
    world.now += 300
    world.log(LIGHTLLM_LOG)
    assert (await world.one("LightLLM")).failure is None


async def test_a_restarted_engine_is_asked_anew(world: World) -> None:
    world.log(LIGHTLLM_LOG)
    await world.one("LightLLM")
    world.log(LIGHTLLM_LOG.replace("90112", "80000"))
    (again,) = await world.read(pod(restarts=1), engine="LightLLM")
    assert again.found.tokens == 80_000


async def test_who_is_gone_is_forgotten(world: World) -> None:
    world.answers["/metrics"] = VLLM_METRICS
    await world.read(pod("a"), pod("b"))
    world.now += 600
    await world.read(pod("b"))
    assert len(world.reader._known) == 2
    world.now += 1
    await world.read(pod("b"))
    assert {uid for uid, _ in world.reader._known} == {"uid-b"}


async def test_few_are_asked_at_once(world: World) -> None:
    running = most = 0

    async def slow(_: str) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return VLLM_METRICS

    world.reader._fetch = slow
    pods = [pod(f"p{n}") for n in range(12)]
    both = await asyncio.gather(world.read(*pods[:6]), world.read(*pods[6:]))
    assert all(reading.source == METRICS for part in both for reading in part)
    assert most == readings.AT_ONCE


async def test_pods_that_hang_neither_hold_up_nor_starve_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "READ_SECONDS", 0.05)

    async def answer(url: str) -> bytes:
        if "10.0.0." in url:
            await asyncio.sleep(60)
        return VLLM_METRICS

    world.reader._fetch = answer
    hanging = [pod(f"a{n}", f"10.0.0.{n}") for n in range(1, 5)]
    async with asyncio.timeout(1):
        first = await world.read(*hanging, pod("b", "10.0.1.1"))
    assert [r.failure for r in first] == [
        *["it gave no answer in 0 s"] * 4,
        "it was not asked yet: others took the time",
    ]
    world.now += 600  # everybody is due again
    second = await world.read(*hanging, pod("b", "10.0.1.1"))
    assert [r.source for r in second] == [None] * 4 + [METRICS]


async def test_a_pass_that_is_cancelled_leaves_nothing_running(world: World) -> None:
    ended: list[str] = []

    async def hang(_: str) -> bytes:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("ended")
        return b""

    world.reader._fetch = hang
    task = asyncio.create_task(world.read(pod("a"), pod("b")))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert ended == ["ended"] * 2


async def test_a_defect_is_logged_and_stays_here(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.answers["/metrics"] = RuntimeError("a defect")
    with caplog.at_level(logging.ERROR):
        reading = await world.one()
    assert reading.source is None
    assert reading.failure
    assert "a defect" in caplog.text


async def test_running_requests_are_counted_when_asked_for(world: World) -> None:
    world.answers["/metrics"] = VLLM_METRICS
    assert (await world.one()).running is None
    assert (await world.one(running=True)).running == 3
    world.answers["/metrics"] = b"vllm:num_requests_running 0.0\n"
    world.now += 4
    assert (await world.one(running=True)).running == 3
    world.now += 1
    assert (await world.one(running=True)).running == 0
    assert (await world.one()).running is None
    assert world.paths() == ["/metrics"] * 3
    world.answers["/metrics"] = Unreachable("gone")
    world.now += 5
    assert (await world.one(running=True)).running is None


async def test_an_old_count_is_not_shown_for_one_that_does_not_come(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.answers["/metrics"] = VLLM_METRICS
    await world.one(running=True)

    async def hang(_: str) -> None:
        await asyncio.sleep(60)

    world.reader._fetch = hang
    monkeypatch.setattr(readings, "READ_SECONDS", 0.05)
    world.now += 5
    reading = await world.one(running=True)
    assert (reading.source, reading.running) == (METRICS, None)


@pytest.mark.parametrize(
    ("engine", "path", "body", "running"),
    [
        ("LightLLM", "/metrics", b'lightllm_num_running_reqs{m="x"} 2.0', 2),
        ("LlamaCpp", "/slots", b'[{"is_processing": true}]', 1),
        ("LlamaCpp", "/slots", None, None),
        ("no such engine", "/metrics", b"vllm:num_requests_running 3.0", None),
    ],
)
async def test_running_requests_of(
    world: World, engine: str, path: str, body: bytes | None, running: int | None
) -> None:
    world.answers[path] = body
    assert (await world.one(engine, running=True)).running == running
