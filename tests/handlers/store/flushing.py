"""A small generation, what the daemon does with it, and whether it counts as whole afterwards."""

from evac.commit import State, finish, put_body, put_manifest, survey, verify
from evac.errors import StoreError
from evac.generation import Generation
from evac.store import Store
from tests.handlers.commit.made import METADATA_BYTES, PREFIX, manifest

GENERATION = Generation(incarnation=1, step=10)
# Real stores take real parts; the tests' servers take any, so that a body of three needs few bytes.
PART = 16 * 1024
BODY = bytes(range(256)) * (2 * PART // 256) + b"and a bit"


async def flush(store: Store, *, body: bytes = BODY) -> None:
    """What the daemon does with a staged generation of one rank."""
    made = manifest(GENERATION, 0, 1, data=body)
    await put_body(store, PREFIX, GENERATION, made.files[0].name, memoryview(body), rank=0)
    await put_manifest(store, PREFIX, made, metadata=METADATA_BYTES)
    assert await finish(store, PREFIX, GENERATION, METADATA_BYTES)


async def attempt(store: Store, *, body: bytes = BODY) -> StoreError | None:
    """What a flush ends with."""
    try:
        await flush(store, body=body)
    except StoreError as error:
        return error
    return None


async def whole(store: Store) -> bool:
    """Whether the generation counts as whole there; fails where it does and is not."""
    found = await survey(store, PREFIX)
    if not found or found[0].state not in (State.COMPLETE, State.FINISHABLE):
        return False
    if found[0].state is State.FINISHABLE:
        assert await finish(store, PREFIX, GENERATION)
    assert await verify(store, PREFIX, GENERATION) == ()
    return True
