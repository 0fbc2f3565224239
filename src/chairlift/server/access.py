"""Who a request is from, and what that lets it ask for: keys, tenants and tiers.

Knows nothing of endpoints. Keys are kept only as keyed digests, so that no comparison, message, log line or memory dump
depends on a key or shows one.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers

from chairlift.config.sections import ServerSettings, TenancySettings
from chairlift.config.tenants import Tenants
from chairlift.errors import ConfigurationError, InvalidRequestError

_MAX_NAME_CHARS = 128
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token of RFC 9110


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request: the number of its key, ``None`` without one, and the tenant that the key names, if any."""

    key_number: int | None = None
    tenant: str | None = None
    is_admin: bool = False


ANYBODY = Caller()
"""Whoever sends no key, where none is needed."""


class KeyRing:
    """Finds a key in a time that says nothing about the keys: what is looked up is a digest under a secret of our own.

    Args:
        keys: each key and who it stands for.
    """

    def __init__(self, keys: Iterable[tuple[str, Caller]]) -> None:
        self._secret = secrets.token_bytes(32)
        self._callers: dict[bytes, tuple[bytes, Caller]] = {}
        for key, caller in keys:
            digest = self._digest(key.encode())
            self._callers.setdefault(digest, (digest, caller))

    def __len__(self) -> int:
        return len(self._callers)

    def find(self, token: bytes) -> Caller | None:
        """Whose key this is; ``None`` if nobody's."""
        digest = self._digest(token)
        kept, caller = self._callers.get(digest, (b"", ANYBODY))
        return caller if hmac.compare_digest(kept, digest) else None

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret, digest_size=32).digest()


class Access:
    """The server's rules.

    Args:
        server: has the key that names no tenant.
        tenancy: has the key for administration, and says where a tenant may come from beside its key.
        tenants: has the keys that name tenants.

    Raises:
        ConfigurationError: a key is empty, the same key is given for two purposes, or no header has such a name.
    """

    def __init__(
        self, server: ServerSettings, tenancy: TenancySettings | None = None, tenants: Tenants | None = None
    ) -> None:
        tenancy = tenancy or TenancySettings()
        tenants = tenants or Tenants()
        if tenancy.tenant_header is not None and not _HEADER_NAME.fullmatch(tenancy.tenant_header):
            raise ConfigurationError(f"--tenant-header {tenancy.tenant_header!r} is no name that a header can have")
        _check_keys(server.api_key, tenancy.admin_api_key, tenants)
        keys = [(key.value, Caller(number, key.tenant)) for number, key in enumerate(tenants.keys, 1)]
        if server.api_key is not None:
            keys.append((server.api_key, Caller(0)))
        admin_key = tenancy.admin_api_key
        self._keys = KeyRing(keys)
        self._admin = KeyRing([] if admin_key is None else [(admin_key, Caller(is_admin=True))])
        self._with_keys = tenants.names_with_keys
        self._trusts_user = tenancy.trust_user
        self._header = tenancy.tenant_header
        self._has_nameless = not tenants.keys or server.api_key is not None
        self._isolates_prefixes = tenancy.isolate_prefix_cache

    @property
    def needs_key(self) -> bool:
        """Whether requests must come with a key."""
        return len(self._keys) > 0

    @property
    def needs_tenants_key(self) -> bool:
        """Whether there are no keys for requests but those of tenants."""
        return not self._has_nameless

    @property
    def trusts_user(self) -> bool:
        """Whether a body may name the tenant."""
        return self._trusts_user

    @property
    def trusts_user_alone(self) -> bool:
        """Whether there are requests of which only they themselves say whose they are."""
        return self._trusts_user and self._header is None and self._has_nameless

    @property
    def has_admin(self) -> bool:
        """Whether there is a key for administration; without one its endpoints are off."""
        return len(self._admin) > 0

    def find_caller(self, headers: Headers) -> Caller | None:
        """Who sends these headers; ``None`` if a key is needed and the right one is not there."""
        token = _bearer_token(headers)
        if not self.needs_key:
            return ANYBODY
        return None if token is None else self._keys.find(token)

    def find_admin(self, headers: Headers) -> Caller | None:
        """The administrator, if the headers have its key."""
        token = _bearer_token(headers)
        return None if token is None else self._admin.find(token)

    def tenant_of(self, caller: Caller, headers: Headers, user: str | None) -> str:
        """Whom a request counts for: the key's tenant, else the trusted header's, else the trusted ``user``'s.

        Raises:
            InvalidRequestError: the name could not be shown, or it is that of a tenant with a key of its own.
        """
        if caller.tenant is not None:
            return caller.tenant
        named = headers.get(self._header) if self._header is not None else None
        if named:
            return _checked_name(named, self._header or "")
        if not self._trusts_user or not user:
            return ""
        name = _checked_name(user, "user")
        if name in self._with_keys:
            raise InvalidRequestError(
                f"user names {name!r}, a tenant that is reached by its own key only", param="user"
            )
        return name

    def cache_salt_of(self, tenant: str, asked_for: str | None) -> str | None:
        """The salt of a request's cached prefixes: the one it asked for, within its tenant if tenants share none."""
        return f"{tenant}\0{asked_for or ''}" if self._isolates_prefixes else asked_for


def _bearer_token(headers: Headers) -> bytes | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if not scheme and (key := headers.get("x-api-key")):
        return key.strip(" \t").encode("latin-1")  # as clients of Anthropic's API send it
    # Only what HTTP calls white space: in Latin-1, bytes of a UTF-8 key would be some too.
    return token.strip(" \t").encode("latin-1") if scheme.lower() == "bearer" else None


def _check_keys(api_key: str | None, admin_key: str | None, tenants: Tenants) -> None:
    for flag, key in (("--api-key", api_key), ("--admin-api-key", admin_key)):
        if key is not None and not key:
            raise ConfigurationError(f"{flag} must not be empty; leave it out to serve without it")
    of_tenants = {key.value: key.tenant for key in tenants.keys}
    if admin_key is not None and admin_key == api_key:
        raise ConfigurationError("--admin-api-key must differ from --api-key, which clients have")
    for flag, key in (("--api-key", api_key), ("--admin-api-key", admin_key)):
        if key in of_tenants:
            raise ConfigurationError(f"{flag} is also a key of [tenants.{of_tenants[key]}]; each key has one purpose")


def _checked_name(name: str, param: str) -> str:
    if len(name) > _MAX_NAME_CHARS or not name.isprintable():
        raise InvalidRequestError(
            f"{param} names the tenant, so it must be printable and at most {_MAX_NAME_CHARS} characters, "
            f"got {len(name)}",
            param=param,
        )
    return name
