"""Messages and schemas for them, made at random: most fit, some in every way do not."""

import json
from random import Random

SIMPLE = (
    "boolean",
    "byte",
    "short",
    "int",
    "long",
    "float",
    "double",
    "decimal(9,2)",
    "decimal(38,10)",
    "string",
    "date",
    "timestamp",
    "timestamp_ntz",
    "binary",
)
QUICK = tuple(each for each in SIMPLE if each != "binary")  # what is parsed at once

ODD = (
    *("null", "true", "0", "-0", "1.0", "1e2", "1.5", "-1", "127", "128", "255", "256", "32768"),
    *("2147483648", "9223372036854775807", "9223372036854775808", "1e400", "-1e-400", "0.005"),
    *("12345678901234567890123456789012345678.5", "[]", "{}", "[1]", '{"x":1}', "[[null]]", '""'),
    *('"1"', '" 1"', '"1,000.50"', '"+1.5"', '"NaN"', '"Infinity"', '"-INF"', '"INF"', '"true"'),
    *(
        '"aGk="',
        '"aGk"',
        '"\\ud83d"',
        '"\\ud83d\\ude00\\u0000"',
        '"\\u00e4\\/\\n"',
        '{ "x" : [ 1 ] }',
    ),
    *('"2024-02-29"', '"2023-02-29"', '"2020-1-1"', '"2020"', '"2020-01"', '"0001-01-01"'),
    *('"2020-01-01T12:00:00Z"', '"2020-01-01 12:00:00.123456789+01:30"', '"2020-01-01T12"'),
    *('"2020-01-01T12:30"', '"2020-01-01T25:00:00"', '"2020-01-01T00:00:00-0800"', '"x"'),
    *('"2020-01-01T00:00:00+1"', '"2020-01-01T00:00:60Z"', '" 2020-01-01 "', '"2020-01-01T"'),
    *('"2020-01-01T00:00:00.Z"', '"2020-01-01T00:00:00 +01:00"', '"2020-01-01T00:00:00+19:00"'),
    *('"2020-01-01t00:00:00z"', '"1582-10-10T00:00:00"', '"9999-12-31T23:59:59.999999Z"'),
)


def schema(rng: Random, depth: int = 2, simple: tuple[str, ...] = SIMPLE) -> str:
    """Return the columns of a schema, as DDL."""
    return ", ".join(f"m{at} {_kind(rng, depth, simple)}" for at in range(rng.randint(1, 6)))


def _kind(rng: Random, depth: int, simple: tuple[str, ...]) -> str:
    if not depth or rng.random() < 0.6:
        return rng.choice(simple)
    shape = rng.choice(("array", "struct", "map"))
    if shape == "array":
        return f"array<{_kind(rng, depth - 1, simple)}>"
    if shape == "map" and simple is SIMPLE:
        return f"map<string,{_kind(rng, depth - 1, simple)}>"
    inner = (f"f{at}:{_kind(rng, depth - 1, simple)}" for at in range(rng.randint(1, 3)))
    return f"struct<{','.join(inner)}>"


def message(rng: Random, kind: object, odd: float) -> str:
    """Return a message for a schema (as its own JSON has it), with so many odd values."""
    if rng.random() < odd / 2:
        return rng.choice([each for each in ODD if not each.startswith("[")])
    assert isinstance(kind, dict)
    return _object(rng, [(each["name"], each["type"]) for each in kind["fields"]], odd)


def _value(rng: Random, kind: object, odd: float) -> str:
    if rng.random() < odd:
        return _odd(rng, kind)
    if rng.random() < 0.1:
        return "null"
    match kind:
        case {"type": "struct", "fields": list(fields)}:
            return _object(rng, [(each["name"], each["type"]) for each in fields], odd)
        case {"type": "array", "elementType": inner}:
            return f"[{','.join(_value(rng, inner, odd) for _ in range(rng.randint(0, 3)))}]"
        case {"type": "map", "valueType": inner}:
            names = [rng.choice("abc") for _ in range(rng.randint(0, 3))]
            members = [f'"{name}":{_value(rng, inner, odd)}' for name in names]
            return f"{{{','.join(members)}}}"
        case str(name):
            return _simple(rng, name)
        case _:
            raise AssertionError(kind)


def _odd(rng: Random, kind: object) -> str:
    """Return what hardly fits; not where Spark does what nobody wants to follow."""
    found = rng.choice(ODD)
    if "timestamp" in str(kind) and found.isdigit():
        return "77"  # seconds beyond the last moment it counts from the first one again
    if "date" in str(kind) and found == '"1"':
        return '"x"'  # the second day of 1970
    if "binary" in str(kind) and found.startswith('"'):
        return '"%%%%"'  # half a group of base64 spoils the whole row, half a byte does not
    return found


def _object(rng: Random, members: list[tuple[str, object]], odd: float) -> str:
    chosen = [each for each in members if rng.random() > 0.1]
    if chosen and rng.random() < odd:
        chosen.append(rng.choice(chosen))  # named twice
    rng.shuffle(chosen)
    found = [f"{json.dumps(name)}:{_value(rng, kind, odd)}" for name, kind in chosen]
    if rng.random() < 0.3:
        found.insert(rng.randint(0, len(found)), f'"other":{rng.choice(ODD)}')
    return f"{{{rng.choice((',', ' , ')).join(found)}}}"


def _simple(rng: Random, name: str) -> str:
    bits = {"byte": 7, "short": 15, "integer": 31, "long": 63}
    if name in bits:
        return str(rng.randint(-(2 ** bits[name]), 2 ** bits[name] - 1))
    if name in ("float", "double"):
        return repr(rng.uniform(-1e6, 1e6))
    if name.startswith("decimal"):
        return f"{rng.randint(-999999, 999999)}.{rng.randint(0, 99):02d}"
    if name == "boolean":
        return rng.choice(("true", "false"))
    day = f"{rng.randint(1900, 2100)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    clock = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d}"
    made = {
        "date": day,
        "timestamp": f"{day}T{clock}.{rng.randint(0, 999999)}{rng.choice(('Z', '+02:00', '', ''))}",
        "timestamp_ntz": f"{day} {clock}",
        "binary": "aGVsbG8=",
    }
    return json.dumps(made.get(name, f"text {rng.randint(0, 99)} \u00e4\U0001f600"))
