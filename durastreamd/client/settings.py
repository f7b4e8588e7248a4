"""How to talk to servers."""

import ssl
from dataclasses import dataclass, field

from durastreamd.client.errors import SettingsError

MIB = 1024 * 1024


@dataclass(frozen=True)
class ClientSettings:
    """How to talk to servers; equal settings share connections."""

    token: str = field(default="", repr=False)  # a bearer token, or with its scheme: "Basic ..."
    token_file: str = ""  # read for every request, so that it can be renewed meanwhile
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    verify: bool = True
    timeout_s: float = 30.0  # without a byte
    retry_s: float = 60.0  # for one request, over all its tries
    retry_interval_s: float = 0.2  # before the second try; doubles from there
    # Of an answer that is held whole, or of one event: the largest blob that a server takes.
    answer_bytes_max: int = 1024 * MIB

    def request_headers(self) -> dict[str, str]:
        """Return the headers that every request has."""
        token = self.token
        if self.token_file:
            try:
                with open(self.token_file, encoding="utf-8") as file:
                    token = file.read().strip()
            except OSError as exc:
                message = f"cannot read the token in {self.token_file}: {exc.strerror}"
                raise SettingsError(message) from exc
        sent = dict(self.headers)
        if token:
            sent["Authorization"] = token if " " in token else f"Bearer {token}"
        return sent

    def tls(self) -> ssl.SSLContext:
        """Return what is trusted, and what this side shows."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
            if self.certificate_file:
                context.load_cert_chain(self.certificate_file, self.key_file or None)
        except OSError as exc:
            named = ", ".join(filter(None, (self.ca_file, self.certificate_file, self.key_file)))
            message = f"cannot read {named}: {exc.strerror or exc}"
            raise SettingsError(message) from exc
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
