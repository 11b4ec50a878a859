"""A manifest is read back as it was written, or not at all."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.errors import GenerationError
from evac.generation import Generation
from evac.manifest import CHUNK, File, Manifest, chunks

plain: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)
texts = st.text(max_size=12)


@st.composite
def files(draw: st.DrawFn, rank: int, kind: str) -> tuple[File, ...]:
    names = st.lists(
        st.sampled_from([f"__{rank}_0.distcp", f"__{rank}_1.distcp", "model.bin"]),
        min_size=1,
        unique=True,
    )
    weights = draw(names) if kind == "weights" else [f"weights/{n}" for n in draw(names)]
    weights = weights if draw(st.booleans()) else []
    rest = draw(names) if kind == "full" else []
    kinds = [*zip(weights, ["weights"] * 3, strict=False), *zip(rest, ["rest"] * 3, strict=False)]
    sums = st.integers(0, 2**32 - 1)
    made = []
    for name, of in kinds:
        nbytes = draw(st.integers(0, 5 * CHUNK))
        crc32c = draw(st.lists(sums, min_size=chunks(nbytes), max_size=chunks(nbytes)))
        made.append(File(name, nbytes, tuple(crc32c), of, draw(st.booleans())))
    return tuple(made)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    world = draw(st.integers(1, 9))
    rank = draw(st.integers(0, world - 1))
    kind = draw(st.sampled_from(["full", "weights"]))
    metadata_nbytes = draw(st.integers(0, 9))
    return Manifest(
        job=draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)),
        run=draw(texts),
        generation=Generation(draw(st.integers(0, 10**18)), draw(st.integers(0, 10**18))),
        rank=rank,
        world=world,
        layout=draw(texts),
        files=draw(files(rank, kind)),
        metadata_nbytes=metadata_nbytes,
        metadata_sha256=draw(st.from_regex(r"[0-9a-f]{64}", fullmatch=True))
        if metadata_nbytes
        else "",
        items=tuple(draw(st.lists(st.dictionaries(texts, plain, max_size=3), max_size=3))),
        order=draw(texts),
        node=draw(texts),
        kind=kind,
    )


@given(manifests())
def test_what_was_encoded_is_decoded(manifest: Manifest) -> None:
    assert Manifest.decode(manifest.encode(), where="here") == manifest


@given(manifests(), st.data())
def test_a_manifest_cut_short_is_none(manifest: Manifest, data: st.DataObject) -> None:
    encoded = manifest.encode()
    cut = data.draw(st.integers(0, len(encoded) - 1))

    with pytest.raises(GenerationError):
        Manifest.decode(encoded[:cut], where="here")


@given(manifests(), st.data())
def test_a_changed_byte_is_noticed_or_says_the_same(
    manifest: Manifest, data: st.DataObject
) -> None:
    encoded = bytearray(manifest.encode())
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))

    try:
        there = Manifest.decode(bytes(encoded), where="here")
    except GenerationError:
        return
    assert there == manifest  # white space, or another spelling of the same text


@given(st.binary(max_size=60) | plain.map(lambda one: json.dumps(one).encode()))
def test_any_bytes_are_refused_and_never_crash(data: bytes) -> None:
    with pytest.raises(GenerationError):
        Manifest.decode(data, where="here")


def test_nesting_without_end_is_refused() -> None:
    for deep in (b"[" * 200_000, b'{"schema":1,"digest":"","x":' + b"[" * 900 + b"]" * 900 + b"}"):
        with pytest.raises(GenerationError):
            Manifest.decode(deep, where="here")


BODY = File("__0_0.distcp", 3, (7,))


def resigned(change: Callable[[dict[str, Any]], Any]) -> bytes:
    """A manifest with a right digest, whatever it says: what a hostile writer can make."""
    made = Manifest("job", "run", Generation(1, 2), 0, 1, "l", (BODY,))
    document = json.loads(made.encode())
    del document["digest"]
    change(document)
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["digest"] = hashlib.sha256(canonical.encode()).hexdigest()
    return json.dumps(document).encode()


def test_a_resigned_manifest_is_read_where_nothing_is_wrong() -> None:
    assert Manifest.decode(resigned(lambda _: None), where="here").nbytes == 3


@given(
    name=st.sampled_from([
        "job", "run", "generation", "rank", "world", "layout", "files",
        "metadata_nbytes", "metadata_sha256", "items", "order", "node", "kind", "schema", "more",
    ]),
    value=plain,
)  # fmt: skip
def test_a_signed_manifest_holds_only_what_its_types_say(name: str, value: Any) -> None:
    try:
        there = Manifest.decode(resigned(lambda d: d.update({name: value})), where="here")
    except GenerationError:
        return
    assert all(type(n) is int and n >= 0 for n in (there.rank, there.world, there.nbytes))
    assert there.rank < there.world
    assert all(type(t) is str for t in (there.run, there.layout, there.order, there.node))
    assert "/" not in there.job
    assert type(there.generation.step) is int
    assert type(there.generation.incarnation) is int
    assert all(isinstance(item, dict) for item in there.items)


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 1}, {"rank": -1}, {"rank": True}, {"world": 0}, {"items": [1]},
        {"job": "../x"}, {"job": 5}, {"files": []}, {"files": {}}, {"files": [7]}, {"files": None},
        {"generation": {"incarnation": "1", "step": 2}}, {"generation": {"step": 2}},
        {"generation": {"incarnation": 1, "step": -2}}, {"generation": 7}, {"schema": 1}, {"schema": 3}, {"schema": True},
        {"metadata_nbytes": 5}, {"metadata_sha256": "0" * 64}, {"kind": "half"}, {"unknown": 1},
        {"metadata_nbytes": 5, "metadata_sha256": "/" * 64},
    ],
)  # fmt: skip
def test_a_signed_lie_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(GenerationError):
        Manifest.decode(resigned(lambda document: document.update(change)), where="here")


@pytest.mark.parametrize(
    "change",
    [
        {"nbytes": 5 * CHUNK}, {"nbytes": -1}, {"nbytes": 3.0}, {"nbytes": True}, {"crc32c": []},
        {"crc32c": [-1]}, {"crc32c": "7"}, {"crc32c": {"7": 1}}, {"name": "../x.bin"}, {"name": None},
        {"name": ".metadata"}, {"name": "__0.manifest.json"}, {"name": "weights/../x.bin"},
        {"name": "weights/weights/x.bin"}, {"name": "weights/.metadata"}, {"kind": "half"},
        {"kind": ["rest"]}, {"kind": "weights"}, {"name": "weights/x.bin"}, {"held": 1}, {"more": 1},
    ],
)  # fmt: skip
def test_a_signed_lie_about_a_file_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(GenerationError):
        Manifest.decode(resigned(lambda d: d["files"][0].update(change)), where="here")


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("full", ["__0_0.distcp", "__0_0.distcp"]),
        ("full", ["__0_0.distcp", "weights/__0_0.distcp"]),
        ("weights", ["weights/__0_0.distcp"]),
    ],
)
def test_files_that_no_such_manifest_can_have_are_refused(kind: str, names: list[str]) -> None:
    def change(document: dict[str, Any]) -> None:
        kinds = ["weights" if name.startswith("weights/") else "rest" for name in names]
        first = document["files"][0]
        named = [{**first, "name": n, "kind": k} for n, k in zip(names, kinds, strict=True)]
        document.update(kind=kind, files=named)

    with pytest.raises(GenerationError):
        Manifest.decode(resigned(change), where="here")


def test_the_weights_manifest_names_the_weights_and_nothing_else() -> None:
    weights = File("weights/__0_0.distcp", 5, (9,), "weights")
    items = ({"name": "w", "offset": 0, "nbytes": 5}, {"name": "m", "offset": 5, "nbytes": 3})
    made = Manifest("job", "", Generation(1, 2), 0, 1, "l", (weights, BODY), items=items)

    alone = made.of_weights(b"plan")

    assert alone.files == (File("__0_0.distcp", 5, (9,), "weights"),)
    assert [item["name"] for item in alone.items] == ["w"]
    assert (alone.kind, alone.metadata_nbytes) == ("weights", 4)
    assert Manifest.decode(alone.encode(), where="here") == alone


@pytest.mark.parametrize("kind", ["full", "weights"])
def test_a_manifest_of_schema_1_is_read_as_one_file(kind: str) -> None:
    def change(document: dict[str, Any]) -> None:
        del document["files"]
        document.update(schema=1, kind=kind, body="__0_0.distcp", nbytes=3, crc32c=[7])

    there = Manifest.decode(resigned(change), where="here")

    assert there.files == (File("__0_0.distcp", 3, (7,), "rest" if kind == "full" else "weights"),)
    assert there.kind == kind


@given(st.integers(0, 2**50))
def test_chunks_cover_all_and_none_is_empty(nbytes: int) -> None:
    assert chunks(nbytes) * CHUNK >= nbytes
    assert (chunks(nbytes) - 1) * CHUNK < nbytes or nbytes == 0
