"""Access tokens of Google's that end in mid-flush: a row of the table of faults.

A token is an account's, from a real token endpoint on loopback, and goes over TLS to the real server. What stands
between them refuses it from some call of a flush on, as Google does with one that has expired or was revoked.
"""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError

from evac.commit import verify
from evac.errors import StoreError, StoreRejected, StoreUnavailable
from evac.store.answers import CLOCK
from evac.store.gcs_calls import of_no_token
from tests.handlers.commit.made import PREFIX
from tests.handlers.store.faulty import Place, fresh
from tests.handlers.store.flushing import GENERATION, attempt, flush, whole
from tests.handlers.store.test_faults import NIGHTLY, google
from tests.handlers.store.test_faults_clocks import GOOGLE
from tests.services.gcs import GcsServer
from tests.services.proxy import Fate, Rule, proxy
from tests.services.tokens import Tokens, bearer, tokens

EXPIRED = (401, google("authError", "Invalid Credentials"))


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tokens]:
    with tokens() as made:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(made.account(tmp_path)))
        yield made


@pytest.fixture
def there(
    fake_gcs: GcsServer,
    account: Tokens,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> Iterator[Place]:
    record_property("faults", ("keys expire", "gs"))
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    with proxy(fake_gcs.port, tls=context) as between:
        yield Place("gs", between, fake_gcs.endpoint)


async def sound(there: Place, mark: str) -> bool:
    """Whether all of it is there, asked without any token."""
    return await verify(there.store(mark, struck=False), PREFIX, GENERATION) == ()


async def test_a_token_that_ends_at_any_call_of_a_flush_is_replaced_and_the_flush_goes_on(
    there: Place, account: Tokens
) -> None:
    await flush(there.store(mark := fresh()))
    assert account.given == 1
    assert all(bearer(1) in one.head for one in there.between.seen)
    calls = there.requests(mark)

    for after in range(0, calls, 1 if NIGHTLY else 4):
        old, mark = account.given + 1, fresh()
        there.between.rules[:] = [Rule(EXPIRED, within=mark, bearing=bearer(old), after=after)]

        await flush(there.store(mark))

        assert account.given > old, after
        assert await sound(there, mark), after


async def test_each_call_whose_token_is_refused_once_is_made_again(
    there: Place, account: Tokens
) -> None:
    there.between.rules.append(Rule(EXPIRED, within=(mark := fresh()), first_tries=True))

    await flush(there.store(mark))

    assert account.given > 1
    assert await sound(there, mark)


async def test_a_token_that_is_about_to_end_is_not_waited_to_be_refused(
    there: Place, account: Tokens
) -> None:
    account.seconds = 1  # google-auth takes no token that is good for less than some minutes

    await flush(there.store(mark := fresh()))

    assert account.given >= there.requests(mark) > 1
    assert await sound(there, mark)


async def test_tokens_that_are_refused_whoever_gives_them_are_told_and_the_next_try_succeeds(
    there: Place, account: Tokens
) -> None:
    store = there.store(mark := fresh())
    rule = Rule(EXPIRED, within=mark, after=3)
    there.between.rules.append(rule)

    error = await attempt(store)

    assert type(error) is StoreUnavailable
    assert error.reason == "credentials have expired (authError)"
    assert not await whole(there.store(mark, struck=False))
    rule.times = 0
    assert await attempt(store) is None
    assert await sound(there, mark)


@pytest.mark.parametrize(
    ("refuses", "kind", "reason"),
    [
        ((0, b""), StoreUnavailable, "no access token to be had from Google: connection lost"),
        ((400, b'{"error": "invalid_grant"}'), StoreRejected, "no access token to be had from Google"),
        ((400, GOOGLE.encode()), StoreUnavailable, f"no access token to be had from Google: {CLOCK}"),
    ],
    ids=["no answer", "refused", "clock wrong"],
)  # fmt: skip
async def test_a_token_endpoint_that_gives_none_in_mid_flush_is_told_and_the_next_try_succeeds(
    there: Place,
    account: Tokens,
    refuses: tuple[int, bytes],
    kind: type[StoreError],
    reason: str,
) -> None:
    store = there.store(mark := fresh())

    def gone() -> None:
        account.refuses = refuses

    there.between.rules += [
        Rule(Fate.PASS, within=mark, after=3, times=1, met=gone),
        Rule(EXPIRED, within=mark, bearing=bearer(1), after=3),
    ]

    error = await attempt(store)

    assert type(error) is kind
    assert error.reason == reason
    assert not await whole(there.store(mark, struck=False))
    account.refuses = None
    assert await attempt(store) is None
    assert account.given > 1
    assert await sound(there, mark)


async def test_an_account_that_was_replaced_in_its_file_opens_the_store_without_a_restart(
    there: Place, account: Tokens, tmp_path: Path
) -> None:
    with tokens() as former:
        former.account(tmp_path)  # in the other one's place
        former.refuses = 400, b'{"error": "invalid_grant"}'
        store = there.store(mark := fresh())
        error = await attempt(store)

    assert type(error) is StoreRejected
    account.account(tmp_path)
    assert await attempt(store) is None
    assert await sound(there, mark)


class Answer:
    """Stands for a metadata service's answer, which google-auth puts into its error."""


@pytest.mark.parametrize(
    ("said", "kind", "reason"),
    [
        (("[Errno 111] Connection refused",), StoreUnavailable, ": connection refused"),
        (("Status: 404 Response:", Answer()), StoreRejected, ""),
    ],
    ids=["nobody there", "no account"],
)  # fmt: skip
def test_a_machine_whose_metadata_service_is_away_is_worth_another_try(
    said: tuple[object, ...], kind: type[StoreError], reason: str
) -> None:
    cause = TransportError(*said)  # type: ignore[no-untyped-call]  # google's
    try:  # as google.auth.compute_engine does
        raise RefreshError(cause) from cause  # type: ignore[no-untyped-call]  # google's
    except GoogleAuthError as error:
        told = of_no_token("key", error)

    assert type(told) is kind
    assert told.reason == f"no access token to be had from Google{reason}"
