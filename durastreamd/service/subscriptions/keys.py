"""The keys of subscriptions: one that makes tokens, and those that sign webhooks. Durable.

They are in one file of the data directory, so tokens and signatures stay good over a restart, and a
backup has them. Signing keys are replaced when they are old. A new one is published for a while
before it signs, since receivers keep the set of keys for five minutes; an old one stays published
until nothing that it signed is accepted any more.
"""

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from typing import NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from durastreamd.errors import CorruptDataError
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import Disk, read_file, write_new_file

CACHE_S = 300  # how long receivers keep the set of keys
PUBLISHED_MS = CACHE_S * 1000  # before its first use
KEPT_MS = 2 * CACHE_S * 1000  # after its last: the cache, and what a signature is good for
EXPIRY_MS = 3_600_000  # a token outlives its lease by so long
DAY_MS = 86_400_000


class StoredKey(msgspec.Struct, frozen=True):
    """A signing key as the file has it; it signs from ``from_ms`` on, until another does."""

    private: str
    from_ms: int


class StoredKeys(msgspec.Struct, frozen=True):
    """The whole file."""

    token: str
    signing: list[StoredKey]


class SigningKey:
    """A key that signs."""

    def __init__(self, stored: StoredKey) -> None:
        self.stored = stored
        self._key = Ed25519PrivateKey.from_private_bytes(unpacked(stored.private))
        x = packed(self._key.public_key().public_bytes_raw())
        named = json.dumps({"crv": "Ed25519", "kty": "OKP", "x": x}, separators=(",", ":"))
        self.kid = f"ds_{packed(hashlib.sha256(named.encode()).digest())}"
        self.public = {
            "kty": "OKP", "crv": "Ed25519", "x": x, "kid": self.kid, "use": "sig", "alg": "EdDSA",
        }  # fmt: skip

    def signature(self, body: bytes, now_s: int) -> str:
        """Return the value of Webhook-Signature."""
        signed = packed(self._key.sign(b"%d." % now_s + body))
        return f"t={now_s},kid={self.kid},ed25519={signed}"


class Held(NamedTuple):
    """What a token says, once it is known to be ours."""

    generation: int
    wake_id: str
    expires_ms: int


class Keys:
    """The keys of one data directory; none until somebody subscribes."""

    def __init__(self, disk: Disk, clock: Callable[[], int]) -> None:
        self._disk = disk
        self._clock = clock
        self._token = b""
        self.signing: list[SigningKey] = []
        if disk.exists(fmt.KEYS_FILE):
            self._take(self._read())

    def _read(self) -> StoredKeys:
        try:
            return msgspec.json.decode(read_file(self._disk, fmt.KEYS_FILE), type=StoredKeys)
        except msgspec.MsgspecError as exc:
            reason = f"{exc}; restore it from a backup, or remove it: tokens then end at once"
            raise CorruptDataError(fmt.KEYS_FILE, 0, reason) from exc

    def _take(self, stored: StoredKeys) -> None:
        self._token = unpacked(stored.token)
        self.signing = [SigningKey(key) for key in stored.signing]

    @property
    def there(self) -> bool:
        """Tell whether there are keys."""
        return bool(self.signing)

    def renew(self, days: int) -> bool:
        """Make keys that are wanting and drop those that are done with; blocks. True if it did."""
        now_ms = self._clock()
        stored = [key.stored for key in self.signing]
        if not stored:
            fresh = [StoredKey(_new_private(), now_ms)]
        else:
            fresh = rotated(stored, now_ms, days, _new_private)
        if fresh == stored:
            return False
        token = packed(self._token or secrets.token_bytes(32))
        self._write(StoredKeys(token, fresh))
        return True

    def _write(self, stored: StoredKeys) -> None:
        draft = f"{fmt.KEYS_FILE}.new"
        if self._disk.exists(draft):
            self._disk.unlink(draft)
        write_new_file(self._disk, draft, msgspec.json.encode(stored))
        self._disk.rename(draft, fmt.KEYS_FILE)
        self._disk.sync_directory("")
        self._take(stored)

    def signer(self) -> SigningKey:
        """Return the key that signs now: the newest whose time has come."""
        now_ms = self._clock()
        ready = [key for key in self.signing if key.stored.from_ms <= now_ms]
        return (ready or self.signing)[-1 if ready else 0]

    # --- tokens ---

    def token(self, subject: tuple[str, str, int], held: Held) -> str:
        """Return the token of a wake; ``subject`` is root, id and incarnation."""
        said = [*subject, *held, secrets.token_hex(8)]
        body = json.dumps(said, separators=(",", ":")).encode()
        return f"{packed(body)}.{packed(self._sum(body))}"

    def held(self, token: str, subject: tuple[str, str, int]) -> Held | None:
        """Return what a token says; None if it is not ours, or another's."""
        body, _, given = token.partition(".")
        try:
            raw = unpacked(body)
            if not self._token or not hmac.compare_digest(unpacked(given), self._sum(raw)):
                return None
            root, name, incarnation, generation, wake_id, expires_ms, _ = json.loads(raw)
        except ValueError:
            return None
        if (root, name, incarnation) != subject:
            return None
        return Held(generation, wake_id, expires_ms)

    def _sum(self, body: bytes) -> bytes:
        return hmac.digest(self._token, b"durastreamd subscription token\n" + body, "sha256")


def rotated(
    keys: list[StoredKey], now_ms: int, days: int, make: Callable[[], str]
) -> list[StoredKey]:
    """Return the keys as they should be: the last one signs, or is about to."""
    using = [at for at, key in enumerate(keys) if key.from_ms <= now_ms]
    current = using[-1] if using else 0
    # A key ends when the one after it begins.
    kept = [
        key
        for at, key in enumerate(keys)
        if at >= current or now_ms < keys[at + 1].from_ms + KEPT_MS
    ]
    if days and now_ms - kept[-1].from_ms >= days * DAY_MS:
        kept.append(StoredKey(make(), now_ms + PUBLISHED_MS))
    return kept


def _new_private() -> str:
    return packed(Ed25519PrivateKey.generate().private_bytes_raw())


def packed(data: bytes) -> str:
    """Return bytes as base64url has them, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unpacked(text: str) -> bytes:
    """Return the bytes of base64url; raises ValueError."""
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True)
