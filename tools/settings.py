"""Writes what is made from the settings: durastreamd.toml and man/durastreamd.toml.5.

Run as ``python tools/settings.py`` after a setting or its reason has changed.
"""

import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from durastreamd.config import defaults_text  # noqa: E402
from durastreamd.config.printing import in_section, summary_of, toml  # noqa: E402
from durastreamd.config.settings import section_defaults  # noqa: E402
from durastreamd.daemon.reloading import RELOADABLE, is_among  # noqa: E402

WIDTH = 76  # of a line of the page's source

HEAD = r""".\" Made by tools/settings.py from the settings; edit those, or the text there.
.Dd November 16, 2026
.Dt DURASTREAMD.TOML 5
.Os
.Sh NAME
.Nm durastreamd.toml
.Nd settings of the Durable Streams server
.Sh DESCRIPTION
.Xr durastreamd 8
needs no configuration.
What it is told otherwise stands in a TOML file, the one named by
.Fl -config ,
else
.Pa durastreamd.toml
in
.Ev CONFIGURATION_DIRECTORY ,
else
.Pa /etc/durastreamd/durastreamd.toml .
.Pp
A setting has a section and a key.
It is looked for, in this order, on the command line
.Pq Fl -set Ar section.key Ns = Ns Ar value ,
in the environment
.Pq Ev DURASTREAMD_SECTION__KEY ,
in the file, and among the defaults.
In the first two the values of a list are separated by commas.
.Nm durastreamd
.Fl -print-config
shows what is in force and where each value came from,
.Fl -check-config
finds out what is wrong, and
.Fl -print-defaults
writes a file with every default.
An unknown section or key is an error, as is a value that does not fit.
.Pp
Times are seconds, keys ending in
.Li _s
or
.Li _s_max ;
sizes are bytes.
A key that names a file may name a credential of the service manager: a bare
name is sought in
.Ev CREDENTIALS_DIRECTORY
first.
Variables are not expanded.
.Ss Reloading
.Dv SIGHUP
reads everything again, and the files that settings name.
If anything is wrong, all stays as it was and the log says why.
A setting marked
.Sq reload
below is in force at once, for requests that begin from then on; a change of
any other is named in
the log and waits for a restart.
.Sh SETTINGS
"""

ACCESS = r""".Sh ACCESS
Without
.Va tokens_file ,
.Va jwt_key_file
or
.Va jwt_jwks_file
everybody who can reach the server may read and write.
It then listens on loopback and unix sockets only and ends with status 78
otherwise, unless
.Va access.allow_anonymous
is true or
.Va tls.client_ca
is set.
With one of them a request needs
.Dq Authorization: Bearer Ar token ;
tokens in URLs are refused.
.Pa /health , /-/healthz , /-/readyz , /errors/
and preflights stay open.
.Bl -tag -width admin
.It Cm read
GET and HEAD, live reads, the source of a fork.
.It Cm write
PUT, POST, DELETE.
.It Cm admin
.Pa /-/metrics
and all else under
.Pa /-/ .
.El
.Pp
No scope includes another.
A prefix, such as
.Pa /v1/stream/team-a
or
.Pa /bucket1 ,
is that stream or bucket and all below it, by whole segments.
.Ss The file of tokens
One token a line; the SHA-256 of the token comes first, the rest in any order:
.Bd -literal -offset indent
sha256:HASH scopes=read,write prefix=/v1/stream/team-a name=ci
sha256:HASH scopes=read expires=2027-01-01T00:00:00Z rate=100/s
.Ed
.Pp
Tokens must be random, not passwords.
This makes one, shows it once, and adds its line to the file:
.Bd -literal -offset indent
durastreamd --gen-token ci scopes=read,write prefix=/v1/stream/team-a >> tokens
.Ed
.Pp
A token may have several prefixes; without one it is good everywhere.
Tokens of one name share a rate.
.Ss JWT
.Va access.jwt_algorithms
pins algorithms; each key has those of its own kind.
An empty list of prefixes is no place at all.
.Ss Tokens that change
.Dv SIGHUP
reads this section and its files anew; live readers whose token is gone end
at once (401, or the end of the SSE response).
Files that do not fit leave the old ones in force.
.Ss Rates
Beyond
.Va access.rate
the answer is 429 with Retry-After.
IPv6 counts by /64; unix sockets are not counted.
"""

TAIL = r""".Sh FILES
.Bl -tag -width indent
.It Pa /etc/durastreamd/durastreamd.toml
Read if no file is named.
.El
.Sh EXAMPLES
Serve TLS with keys from the service manager, and a page of another origin:
.Bd -literal -offset indent
[server]
listen = ["127.0.0.1:4437"]

[tls]
certificate = "tls.crt"
key = "tls.key"

[cors]
origins = ["https://app.example.org"]
.Ed
.Sh SEE ALSO
.Xr systemd.exec 5 ,
.Xr durastreamd 7 ,
.Xr dsadmin 8 ,
.Xr durastreamd 8
"""


def escaped(text: str) -> str:
    """Return text that roff shows as it is."""
    shown = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + shown if shown.startswith((".", "'")) else shown


def manual() -> str:
    """Return the manual page of every setting."""
    lines = [HEAD.rstrip("\n")]
    for section, value in section_defaults().items():
        lines += [f".Ss [{section}]", escaped(summary_of(value))]
        lines.append(".Bl -tag -width indent")
        for setting in in_section(section):
            shown = escaped(toml(setting.default)).replace('"', "\\(dq")
            lines.append(f'.It Va {setting.key} No = "{shown}"')
            why = textwrap.wrap(setting.why.removesuffix(".") + ".", WIDTH)
            lines += [escaped(line) for line in why]
            if is_among(setting.name, RELOADABLE):
                lines.append(".Pq reload")
        lines.append(".El")
    return "\n".join(lines) + "\n" + ACCESS + TAIL


def main() -> None:
    """Write both files."""
    (ROOT / "durastreamd.toml").write_text(defaults_text(), encoding="utf-8")
    (ROOT / "man" / "durastreamd.toml.5").write_text(manual(), encoding="utf-8")


if __name__ == "__main__":
    main()
