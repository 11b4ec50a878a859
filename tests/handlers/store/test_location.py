"""Where a store is, as its URL says; what no bucket can be called is refused at once."""

import pytest

from evac.errors import ConfigError
from evac.store.location import parse


@pytest.mark.parametrize(
    "url",
    [
        "s3://abc",
        "s3://my-bucket.of.7/a/b",
        "s3://" + "a" * 63,
        "gs://my_bucket-7",
        "gs://checkpoints.example.com/a",
        "gs://" + "a" * 63 + "." + "b" * 63,
        "az://my-container",
    ],
)
def test_what_a_bucket_can_be_called_is_taken(url: str) -> None:
    assert parse(url, options=()).url == url


@pytest.mark.parametrize(
    "url",
    [
        "s3://ab",
        "s3://" + "a" * 64,
        "s3://My-Bucket",
        "s3://my_bucket",
        "s3://my..bucket",
        "s3://bucket-",
        "s3://192.168.5.4",
        "gs://Bucket",
        "gs://bucket_",
        "gs://" + "a" * 64,
        "gs://192.168.5.4",
        "az://my--container",
        "az://my.container",
        "az://Container",
        "az://ab",
    ],
)
def test_what_no_bucket_can_be_called_is_refused_with_what_one_can(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(url, options=())

    assert "name: 3 to 63 of a-z" in str(refused.value)
    assert url in str(refused.value)
