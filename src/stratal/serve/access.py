"""Who may ask: API keys, what they open, and TLS.

A file of keys has a line for each: a name that logs may show, the key, and `admin` where it may change
models.

    # who    key                                admin
    shop     4f1c0e6a5d8b4e0a9c3f7b21d6e8a0c5
    ops      9d2b7c51e3f84a6db0a1c8f5e7429b36   admin

Keys are kept as SHA-256 digests and compared in constant time, with all of them: the time of an answer does
not tell how much of a key is right. No error, log or metric has a key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stratal.base.errors import AttributeValueError, FormatError
from stratal.serve.protocol import RequestError

SHORTEST_KEY: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FORM: Final = f"a line has a name, a key of at least {SHORTEST_KEY} characters, and perhaps `admin`"


@dataclass(frozen=True)
class Key:
    """An API key: whose it is, its SHA-256 digest, and whether it may change models."""

    name: str
    digest: bytes
    admin: bool = False


@dataclass(frozen=True)
class Access:
    """Who may do what. Without keys all may ask, and models change only where `allow_load` is set."""

    keys: tuple[Key, ...] = ()
    allow_load: bool = False

    def caller(self, headers: Mapping[bytes, bytes]) -> Key | None:
        """Return whose key a request has; None where the server has no keys.

        The key is in `Authorization: Bearer KEY` or in `X-API-Key: KEY`. Raises: RequestError, 401.
        """
        if not self.keys:
            return None
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            given = headers.get(b"x-api-key", b"")
        digest = hashlib.sha256(given.strip()).digest()
        matches = [key for key in self.keys if hmac.compare_digest(key.digest, digest)]
        if not matches:
            met = "a key that is not known" if given else "none"
            raise RequestError(401, "an API key: Authorization: Bearer KEY, or X-API-Key: KEY", got=met)
        return matches[0]

    def check_change(self, caller: Key | None) -> None:
        """Return where a caller may load and unload models. Raises: RequestError, 403."""
        if caller is None and not self.allow_load:
            raise RequestError(403, "repository: models are changed with an API key marked admin, "
                               "or where the server is started with --allow-load")  # fmt: skip
        if caller is not None and not caller.admin:
            raise RequestError(403, "repository: this API key is not marked admin", got=caller.name)


def read_keys(path: Path) -> tuple[Key, ...]:
    """Return the keys of a file. Raises: FormatError, naming the line and never what it holds."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise FormatError("api keys: cannot read the file", got=f"{path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise FormatError("api keys: not a text", got=str(path)) from None
    keys: list[Key] = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        fine = 2 <= len(words) <= 3 and _NAME.fullmatch(words[0]) and len(words[1]) >= SHORTEST_KEY
        if not fine or words[2:] not in ([], ["admin"]):
            raise FormatError(f"api keys: {_FORM}", got=f"{path}, line {number}")
        key = Key(words[0], hashlib.sha256(words[1].encode()).digest(), words[2:] == ["admin"])
        if any(key.name == other.name or key.digest == other.digest for other in keys):
            raise FormatError("api keys: a name or key appears twice", got=f"{path}, line {number}")
        keys.append(key)
    if not keys:
        raise FormatError("api keys: the file has none", got=str(path), hint=_FORM)
    return tuple(keys)


@dataclass(frozen=True)
class Tls:
    """A certificate (with its chain) and its key, as PEM files."""

    certificate: Path
    key: Path

    def pem(self) -> tuple[bytes, bytes]:
        """Return the key and the certificate as they are in their files."""
        return self.key.read_bytes(), self.certificate.read_bytes()

    def context(self) -> ssl.SSLContext:
        """Return a context for a server, TLS 1.2 or newer. Raises: AttributeValueError naming the file."""
        for path in (self.certificate, self.key):
            try:
                path.read_bytes()
            except OSError as error:
                raise AttributeValueError("tls: cannot read", got=f"{path}: {error.strerror}") from error
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(
                self.certificate, self.key, password=b""
            )  # an encrypted key is not asked for
        except ssl.SSLError as error:
            what = f"{self.certificate}, {self.key}"
            if error.reason == "KEY_VALUES_MISMATCH":
                raise AttributeValueError("tls: the key is not that of the certificate", got=what) from error
            raise AttributeValueError(
                "tls: a certificate and its key without a password, in PEM",
                got=f"{what}: {error.reason or error}",
            ) from error
        return context
