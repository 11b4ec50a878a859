"""Opens what the settings name before anything is started: whoever starts it is still looking."""

from collections.abc import Mapping

from evac.errors import ConfigError
from evac.store import Store, open_store
from evacd.config import Config, without_secrets


def open_targets(config: Config) -> Mapping[str, Store]:
    """The store behind each target; no byte goes there yet.

    Raises:
        ConfigError: A URL is of no kind that works here.
    """
    return {url: _store(config, url) for url in config.store.targets}


def read_secret(config: Config) -> bytes | None:
    """What signs departures; None where nothing does.

    Raises:
        ConfigError: Its file cannot be read, or is empty.
    """
    path = config.departure.secret_file
    if path is None:
        return None
    key = "departure.secret_file"
    where = config.origins.get(key, str(path))
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        expected = f"a file that can be read ({path}: {error.strerror or error})"
        raise ConfigError(where, key, expected) from error
    if not secret:
        raise ConfigError(where, key, f"a file with something in it ({path} is empty)")
    return secret


def _store(config: Config, url: str) -> Store:
    try:
        return open_store(url)
    except ConfigError as error:
        # Its own words may repeat the URL, and with it a password.
        key, expected = "store.targets", f"{error.expected} (for {without_secrets(url)})"
        raise ConfigError(config.origins.get(key, "--store"), key, expected) from error
