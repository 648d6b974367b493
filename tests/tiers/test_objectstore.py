"""The object store and its tier, against a real S3 server in a process of its own, killed when told to."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tiers.s3_bucket import IMPATIENT, PAYLOAD, SECRET, Bucket
from tests.tiers.s3_server import S3Server
from tests.tiers.s3_stand_in import StandIn, serving
from tests.tiers.storage_rows import ROW_BYTES
from tests.tiers.words import k, keys
from tiers import LookupResult, TierContractError, TierError, TierValueError
from tiers.factory import SecondaryTierFactory
from tiers.objectstore.store import S3Store
from tiers.objectstore.tier import ObjectStoreTier
from tiers.storage.block_store import HEADER_BYTES, BlockCorruptError, BlockMissingError

pytestmark = pytest.mark.usefixtures("credentials")


@pytest.fixture
def store(bucket: Bucket) -> Iterator[S3Store]:
    made = bucket.store(prefix="of/ours")
    yield made
    made.close()


def data(name: str) -> memoryview:
    return memoryview((name.encode() * PAYLOAD)[:PAYLOAD])


def got(store: S3Store, name: str) -> bool:
    into = memoryview(bytearray(PAYLOAD))
    store.get(k(name), into)
    return into == data(name)


# The store


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=100_000), st.integers(0, 2**32 - 1))
def test_bytes_survive(bucket: Bucket, payload: bytes, group: int) -> None:
    """Any number of bytes of any group comes back as it was."""
    store, key = bucket.store(block_bytes=len(payload)), k("a", group)
    into = memoryview(bytearray(len(payload)))
    store.delete(key)
    assert store.put(key, memoryview(payload))
    store.get(key, into)
    assert into == payload
    assert (key, len(payload)) in [*store.inventory()]
    store.close()


def test_what_is_there_is_not_written_again(store: S3Store) -> None:
    """A second put says that the block was there, and leaves it as it was."""
    assert store.put(k("a"), data("a"))
    assert not store.put(k("a"), data("b"))
    assert got(store, "a")


def test_gone_is_missing(store: S3Store) -> None:
    """A block that was deleted, by whom ever, is missing, and deleting it again is no error."""
    store.put(k("a"), data("a"))
    assert store.holds(keys("a b a")) == [True, False, True]
    store.delete(k("a"))
    store.delete(k("a"))
    assert store.holds(keys("a")) == [False]
    with pytest.raises(BlockMissingError):
        got(store, "a")


@pytest.mark.parametrize(
    "length", [0, 1, HEADER_BYTES, HEADER_BYTES + PAYLOAD - 1, HEADER_BYTES + PAYLOAD + 1]
)
def test_an_object_of_another_length(store: S3Store, bucket: Bucket, length: int) -> None:
    """An object that is too short or too long is a corrupt block, not in the inventory, and not there: the
    next put takes its place.
    """
    store.put(k("a"), data("a"))
    bucket.rewrite(bucket.names()[0], lambda whole: (whole + b"\0")[:length])
    with pytest.raises(BlockCorruptError, match=f"{length} bytes"):
        got(store, "a")
    assert [*store.inventory()] == []
    assert store.holds(keys("a")) == [False]
    assert store.put(k("a"), data("a"))
    assert got(store, "a")


@pytest.mark.parametrize("byte", [0, 20, 40, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + PAYLOAD - 1])
def test_a_flipped_bit(store: S3Store, bucket: Bucket, byte: int) -> None:
    """One bit that is not as it was written, in the header or behind it, is a corrupt block."""
    store.put(k("a"), data("a"))
    bucket.rewrite(
        bucket.names()[0], lambda whole: whole[:byte] + bytes([whole[byte] ^ 1]) + whole[byte + 1 :]
    )
    with pytest.raises(BlockCorruptError):
        got(store, "a")


def test_inventory_is_this_store_s(store: S3Store, bucket: Bucket) -> None:
    """The inventory has the blocks of this prefix and this layout, and no other object."""
    for name in "abc":
        store.put(k(name), data(name))
    others = [bucket.store(prefix="of/theirs"), bucket.store(prefix="of/ours", layout={"rank": 1})]
    for other in others:
        assert [*other.inventory()] == []
        other.put(k("d"), data("d"))
    bucket.client.put_object(Bucket=bucket.name, Key=f"{store.prefix}notes", Body=b"mine")
    assert sorted(store.inventory()) == [(key, PAYLOAD) for key in keys("a b c")]
    for other in others:
        other.close()


def test_memory_of_another_size(store: S3Store) -> None:
    """A wrong size is the caller's mistake, and never a corrupt block."""
    with pytest.raises(TierContractError):
        store.get(k("a"), memoryview(bytearray(PAYLOAD + 1)))


def test_a_server_without_conditions() -> None:
    """Of a server that knows no conditional put the store asks first, from then on."""

    class Unconditional(StandIn):
        def put(self) -> None:
            if self.headers["If-None-Match"]:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.answer(501)
            else:
                super().put()

    with serving(Unconditional) as url:
        store = S3Store("bucket", block_bytes=PAYLOAD, endpoint_url=url, region="us-east-1", **IMPATIENT)
        assert [store.put(k("a"), data("a")) for _ in range(3)] == [True, False, False]
        assert store.put(k("b"), data("b"))
        store.close()


# What cannot be used


def test_no_such_bucket(bucket: Bucket) -> None:
    """A bucket that is not there is an error at the start, with its name."""
    with pytest.raises(TierError, match=r"'not-there'.*404.*Make the bucket"):
        S3Store("not-there", block_bytes=PAYLOAD, endpoint_url=bucket.server.url)


def test_nobody_listens() -> None:
    """An endpoint where nothing listens is an error at the start, with its address."""
    with pytest.raises(TierError, match=r"http://127\.0\.0\.1:1: .*Check endpoint_url"):
        S3Store(
            "b", block_bytes=PAYLOAD, endpoint_url="http://127.0.0.1:1", **{**IMPATIENT, "max_attempts": 1}
        )


def test_no_credentials(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials the error says where they are looked for."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(TierError, match=r"NoCredentialsError.*Put credentials where boto3 looks"):
        bucket.store()


def test_access_denied() -> None:
    """A bucket that answers 403 is an error at the start, about rights."""

    class Denying(StandIn):
        def head(self) -> None:
            self.answer(403)

    with serving(Denying) as url, pytest.raises(TierError, match=r"403.*the right to"):
        S3Store("b", block_bytes=PAYLOAD, endpoint_url=url)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_attempts": 0}, "max_attempts 0"),
        ({"max_attempts": True}, "max_attempts True"),
        ({"connections": "8"}, "connections '8'"),
        ({"connect_timeout_s": "5"}, "connect_timeout_s '5'"),
        ({"read_timeout_s": 0}, "read_timeout_s 0"),
        ({"transfer_timeout_s": float("nan")}, "transfer_timeout_s nan"),
        ({"prefix": "\ud800"}, r"prefix '\\ud800'"),
        ({"prefix": None}, "prefix None"),
        ({"region": 1}, "region 1"),
        ({"region": "not a region"}, "no S3 client"),
        ({"block_bytes": 0}, "0 bytes"),
        ({"layout": {"model": b"m"}}, "no JSON"),
        ({"layout": "model"}, "layout 'model'"),
    ],
    ids=ascii,
)
def test_values_that_cannot_be(options: dict[str, Any], reason: str) -> None:
    """What cannot be a name, a number or a layout is a ValueError, before anything is connected."""
    with pytest.raises(TierValueError, match=reason):
        S3Store("b", **{"block_bytes": PAYLOAD, **options})


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "",
        5,
        f"http://me:{SECRET}@127.0.0.1",
        f"me:{SECRET}@127.0.0.1:1",
        f"http:/me:{SECRET}@127.0.0.1:1",
        f"http:\\\\me:{SECRET}@127.0.0.1",
        f"http://me:{SECRET}%40127.0.0.1",
        f"http://127.0.0.1:1/?Signature={SECRET}",
        f"http://127.0.0.1:1/#{SECRET}",
        f"http://127.0.0.1:{SECRET}",
        f"ftp://127.0.0.1/{SECRET}",
        f"http://127.0.0.1:1/\n{SECRET}",
    ],
    ids=ascii,
)
@pytest.mark.parametrize("from_environment", [False, True], ids=["given", "environment"])
def test_an_address_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, url: Any, from_environment: bool
) -> None:
    """What is more than scheme, host, port and path is refused, and no error has any of it, nor has the
    traceback; wherever boto3 has the address from.
    """
    if from_environment and isinstance(url, str) and url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        options = {}
    else:
        options = {"endpoint_url": url}
    with pytest.raises(TierValueError, match="endpoint_url is no plain address") as raised:
        S3Store("b", block_bytes=PAYLOAD, **IMPATIENT, **options)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("path", ["", "/", "/a/deeper~path_1"])
def test_an_address_with_a_path(path: str) -> None:
    """Scheme, host, port and path are an address, and errors name it."""
    with serving(StandIn) as url, pytest.raises(TierError, match=f"{url}{path}: .*404"):
        S3Store("away", block_bytes=PAYLOAD, endpoint_url=f"{url}{path}", **IMPATIENT)


@pytest.mark.parametrize("name", [None, "", 5, "\ud800"], ids=ascii)
def test_a_bucket_without_a_name(name: Any) -> None:
    """What is no text is no name."""
    with pytest.raises(TierValueError, match="bucket"):
        S3Store(name, block_bytes=PAYLOAD)


def test_a_bucket_s_name(bucket: Bucket) -> None:
    """A name that no bucket can have is an error at the start."""
    with pytest.raises(TierError, match="Correct the bucket's name"):
        S3Store("Not a name!", block_bytes=PAYLOAD, endpoint_url=bucket.server.url)


def test_credentials_are_told_to_nobody(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the store's repr, nor its errors, nor any log line has the secret."""
    with caplog.at_level(logging.DEBUG):
        store = bucket.store()
        store.put(k("a"), data("a"))
        with pytest.raises(BlockMissingError) as raised:
            got(store, "b")
    told = [repr(store), str(raised.value), *(record.getMessage() for record in caplog.records)]
    store.close()
    assert bucket.name in told[0]
    assert not any(SECRET in text for text in told)


# The tier


def test_blocks_outlive_their_tier(bucket: Bucket) -> None:
    """What a tier stored is announced once by the next one on the same bucket, and can be loaded there."""
    first = bucket.tier()
    assert first.store("a b c").success
    assert first.said() == "+a +b +c"
    first.tier.shutdown()
    second = bucket.tier(shared=True)
    assert sorted(second.said().split()) == ["+a", "+b", "+c"]
    result, right = second.load("c a")
    assert (result.success, right) == (True, [True, True])
    assert second.find("d") is LookupResult.MISS
    second.tier.shutdown()


def test_the_bound_holds_in_the_bucket(bucket: Bucket) -> None:
    """A bounded tier says what it evicts, and the bucket does not keep it."""
    rows = bucket.tier(max_bytes=2 * ROW_BYTES)
    for name in "abc":
        assert rows.store(name).success
    assert rows.said() == "+a | +b | -a:evicted | +c"
    assert {name.rpartition("/")[2] for name in bucket.names()} == {"62_g0", "63_g0"}
    rows.tier.shutdown()


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_object(bucket: Bucket, damage: str) -> None:
    """A cut, flipped or vanished object fails its own load alone, is announced as removed, and is a miss."""
    rows = bucket.tier()
    rows.store("a b")
    rows.said()
    (name,) = [name for name in bucket.names() if name.endswith("/61_g0")]
    match damage:
        case "cut":
            bucket.rewrite(name, lambda whole: whole[:5000])
        case "flipped":
            bucket.rewrite(name, lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]))
        case "gone":
            bucket.client.delete_object(Bucket=bucket.name, Key=name)
    result, right = rows.load("a b")
    assert (result.success, result.successful_keys, right[1]) == (False, keys("b"), True)
    assert rows.said() == f"-a:{'deleted' if damage == 'gone' else 'corrupt'}"
    assert rows.find("a") is LookupResult.MISS
    assert name not in bucket.names()
    rows.tier.shutdown()


def test_a_server_that_dies(tmp_path: Path) -> None:
    """Killed in the middle of a job, the server fails what it had not taken, by name, and nothing hangs; when
    it is back without its blocks, they are missing, announced as such, and new ones are stored.
    """
    server = S3Server(tmp_path / "log")
    server.start()
    bucket = Bucket(server, "bucket")
    rows = bucket.tier(write_threads=1, read_threads=1, max_attempts=1)
    assert rows.store("a b").success
    rows.said()
    job = rows.begin("c d e f g h")
    server.kill()
    result = rows.finish(job)
    assert not result.success
    stored = rows.said().split()
    failures = {
        name: count for name, count in rows.tier.get_stats().items() if name.startswith("store_failures")
    }
    assert sum(failures.values()) == 6 - len(stored)
    assert failures.keys() <= {
        f"store_failures.{name}" for name in ("ECONNREFUSED", "ECONNRESET", "ETIMEDOUT")
    }
    assert not rows.load("a")[0].success
    assert rows.said() == ""
    server.start()
    bucket.client.create_bucket(Bucket="bucket")
    assert not rows.load("b")[0].success
    assert rows.said() == "-b:deleted"
    assert rows.store("b i").success
    assert rows.load("b i")[1] == [True, True]
    bucket.client.close()
    rows.tier.shutdown()
    server.kill()


def test_a_lost_answer_is_counted(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks whose puts were carried out without an answer take their room until they are deleted, are not
    announced, and the bound holds in the bucket.
    """
    rows = bucket.tier(max_blocks=4)
    client = rows.tier._work._store._client  # type: ignore[attr-defined]
    really = client.put_object

    def lost(**request: Any) -> None:
        really(**request)
        raise ReadTimeoutError(endpoint_url="http://lost")

    with monkeypatch.context() as patch:
        patch.setattr(client, "put_object", lost)
        assert not any(rows.store(name).success for name in "abcdef")
    assert rows.said() == ""
    for name in "ghij":
        rows.store(name)
    assert len(bucket.names()) <= 4
    rows.tier.shutdown()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("bucket", 5),
        ("prefix", "\ud800"),
        ("layout", ["model"]),
        ("endpoint_url", 5),
        ("region", 5),
        ("read_timeout_s", "20"),
        ("transfer_timeout_s", -1),
        ("max_attempts", "3"),
        ("max_bytes", "10GB"),
        ("read_threads", "8"),
        ("write_threads", 0),
        ("backpressure", "true"),
        ("locality", "NEAR"),
    ],
    ids=ascii,
)
def test_options_that_cannot_be(bucket: Bucket, option: str, value: object) -> None:
    """A configuration's value of a wrong type or size is a ValueError that names the option."""
    view = memoryview(bytearray(2 * ROW_BYTES)).cast("B", (2, ROW_BYTES))
    config = {"type": "s3", "bucket": bucket.name, "endpoint_url": bucket.server.url, option: value}
    with pytest.raises(TierValueError, match=option):
        SecondaryTierFactory.create_secondary_tier(config, view)


def test_a_bucket_that_cannot_be_listed() -> None:
    """Where the bucket answers but cannot be listed, the tier does not open, and says so."""
    view = memoryview(bytearray(2 * ROW_BYTES)).cast("B", (2, ROW_BYTES))

    class Unlisted(StandIn):
        def get(self) -> None:
            self.refuse(403, "AccessDenied")

    with serving(Unlisted) as url, pytest.raises(TierError, match=r"cannot list.*'bucket'.*AccessDenied"):
        ObjectStoreTier(None, view, bucket="bucket", endpoint_url=url)
