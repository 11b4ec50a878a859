"""The table of source x fault: what a wrong answer means to each of EC2's sources."""

import asyncio
import socket

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from evacd.facts import Cancelled, Noticed, Quiet, Unknown
from evacd.notice.aws.token import HOP_LIMIT
from evacd.notice.simulate.aws import AwsMetadata
from evacd.notice.simulate.faults import Faults, parse
from tests.agent.notice.aws.scene import (
    ANNOUNCE,
    KEYS,
    NAMES,
    PATIENT,
    QUICK,
    Clocks,
    Scene,
    noticed,
    transitions,
    unknown,
)
from tests.agent.notice.hearing import watching

# What the key's answer is, and the reason that its source then gives.
OF_THE_KEY = {
    "status=301": "HTTP 301",
    "status=400": "HTTP 400",
    "status=401": "HTTP 401",
    "status=403": "HTTP 403",
    "status=410": "HTTP 410",
    "status=429": "HTTP 429",
    "status=500": "HTTP 500",
    "status=503": "HTTP 503",
    "redirect": "HTTP 302, a redirect to http://192.0.2.1/login",
    "html": "HTML",
    "empty": ": ",
    "malformed": ": ",
    "garbage": "not text",
    "too-large": "over 65536",
    "truncated": "cut short",
    "reset": "broke",
    "never": "no answer within",
    "drip": "no answer within",
}
# The same for the answer to the PUT for a token.
OF_THE_TOKEN = {
    "status=400": "no token: HTTP 400",
    "status=403": "no token: HTTP 403",
    "status=404": "no token: HTTP 404",
    "status=429": "no token: HTTP 429",
    "status=500": "no token: HTTP 500",
    "status=503": "no token: HTTP 503",
    "redirect": "HTTP 302, a redirect to http://192.0.2.1/login",
    "html": "HTML",
    "empty": "no token",
    "malformed": "no token",
    "garbage": "not text",
    "too-large": "over 65536",
    "truncated": "cut short",
    "reset": "broke",
    "never": "the PUT times out while a GET is answered",
}
SILENT = ("never", "drip")

TABLE = [
    pytest.param(name, f"{fault}@{where}", reason, id=f"{name}-{fault}-of-the-{what}")
    for what, faults in (("key", OF_THE_KEY), ("token", OF_THE_TOKEN))
    for fault, reason in faults.items()
    for name in NAMES
    for where in ("api/token" if what == "token" else KEYS[name],)
]


@pytest.mark.parametrize(("name", "fault", "reason"), TABLE)
async def test_a_wrong_answer_is_unknown_and_neither_fires_nor_clears(
    scene: Scene, name: str, fault: str, reason: str
) -> None:
    source = scene.sources(limits=QUICK if fault.startswith(SILENT) else PATIENT)[name]
    scene.faults.add(parse(fault))
    before = unknown(await source.probe())
    assert reason in before.reason

    scene.faults.clear()
    scene.pass_time(60.0)
    scene.ec2.actions[ANNOUNCE[name]]()
    first = noticed(await source.probe())

    scene.ec2.expire_tokens()
    scene.faults.add(parse(fault))
    during = unknown(await source.probe())
    assert reason in during.reason

    scene.faults.clear()
    scene.pass_time(60.0)
    assert await source.probe() == first
    assert len(transitions([before, first, during, first])) == 1


@pytest.mark.parametrize("name", NAMES)
async def test_404_of_the_key_says_that_nothing_is_announced(scene: Scene, name: str) -> None:
    source = scene.sources()[name]
    scene.ec2.actions[ANNOUNCE[name]]()
    await source.probe()
    scene.faults.add(parse(f"status=404@{KEYS[name]}"))

    assert isinstance(await source.probe(), Cancelled)
    assert await source.probe() == Quiet(name)


@pytest.mark.parametrize("name", NAMES)
async def test_a_slow_answer_counts_as_any_other(scene: Scene, name: str) -> None:
    scene.faults.add(parse("slow=0.05"))
    scene.ec2.actions[ANNOUNCE[name]]()

    noticed(await scene.sources()[name].probe())


@pytest.mark.parametrize("name", NAMES)
async def test_a_service_that_is_late_is_heard(
    session: aiohttp.ClientSession, ec2: AwsMetadata, theirs: Clocks, name: str
) -> None:
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    scene = Scene(session, f"http://127.0.0.1:{port}", ec2, Clocks(), theirs)
    async with watching(scene.sources()[name]) as hearing:
        await hearing.until(Unknown, after=2)
        ec2.actions[ANNOUNCE[name]]()
        async with TestServer(ec2.app, port=port):
            await hearing.until(Noticed)

    first = unknown(hearing.told[0])
    assert first.reason == "no connection: Connection refused"
    assert "is this a VM of that cloud?" in first.cure


@pytest.mark.parametrize("fault", ["status=401", "status=503", "reset", "html"])
async def test_nothing_ends_a_watch_and_the_notice_is_heard_when_it_is_over(
    scene: Scene, fault: str
) -> None:
    scene.faults.add(parse(fault))
    async with watching(scene.sources()["aws/spot"]) as hearing:
        await hearing.until(Unknown, after=3)
        scene.ec2.preempt()
        scene.faults.clear()
        await hearing.until(Noticed)

    assert len(transitions(hearing.told)) == 1


async def test_a_broken_key_does_not_stop_the_others(scene: Scene) -> None:
    scene.faults.add(parse(f"never@{KEYS['aws/spot']}"))
    scene.ec2.actions["asg-terminate"]()
    sources = scene.sources(limits=QUICK)
    async with watching(sources["aws/spot"]) as dead, watching(sources["aws/asg"]) as alive:
        await alive.until(Noticed)
        await dead.until(Unknown)


async def test_all_sources_at_once_say_the_hop_limit_after_one_put(scene: Scene) -> None:
    scene.faults.add(parse("never@api/token"))
    async with asyncio.TaskGroup() as tasks:
        asked = [
            tasks.create_task(source.probe()) for source in scene.sources(limits=QUICK).values()
        ]

    assert {unknown(each.result()).cure for each in asked} == {HOP_LIMIT}
    assert scene.asked() == ["PUT /latest/api/token", "GET "]


async def test_too_many_questions_are_answered_429_and_the_notice_comes_through(
    scene: Scene,
) -> None:
    scene.ec2.fault = Faults([parse("rate=5")], clock=scene.theirs)
    sources = scene.sources()
    scene.ec2.preempt()
    for _ in range(5):
        await sources["aws/rebalance"].probe()
    refused = unknown(await sources["aws/spot"].probe())
    scene.pass_time(1.5)

    assert refused.reason == "HTTP 429"
    noticed(await sources["aws/spot"].probe())
