"""The columns a query may ask for: those that every message has, and members of JSON objects.

Five names mean what they always mean; any other column of a schema that the user gives is a member
of the message, as ``spark.read.json`` would read it (``members``). So the schema is the projection:
Spark 4 asks no Python source which columns it needs.
"""

from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from durastreamd.spark.errors import OptionError

PERMISSIVE, DROPMALFORMED, FAILFAST = "permissive", "dropmalformed", "failfast"

VALUE, STREAM, OFFSET, TIMESTAMP, SNAPSHOT = "value", "stream", "offset", "timestamp", "snapshot"

# What each may be declared as.
OWN: dict[str, tuple[type[DataType], ...]] = {
    VALUE: (StringType, BinaryType),
    STREAM: (StringType,),
    OFFSET: (LongType,),
    TIMESTAMP: (TimestampType,),
    SNAPSHOT: (BooleanType,),
}
SIMPLE = (
    BooleanType,
    ByteType,
    ShortType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
    DecimalType,
    StringType,
    BinaryType,
    DateType,
    TimestampType,
    TimestampNTZType,
)


@dataclass(frozen=True)
class MemberOptions:
    """How messages become columns, in Spark's words."""

    mode: str = PERMISSIVE
    corrupt: str = "_corrupt_record"
    zone: str = "UTC"


def members_of(schema: StructType) -> StructType:
    """Return the columns that are members of messages."""
    return StructType([each for each in schema.fields if each.name not in OWN])


def is_text(schema: StructType) -> bool:
    """Tell whether messages are taken for text."""
    columns = {each.name: each.dataType for each in schema.fields}
    return isinstance(columns.get(VALUE), StringType) or bool(members_of(schema).fields)


def check_columns(schema: StructType, source: str, own: tuple[str, ...], corrupt: str) -> None:
    """Refuse columns that rows of a source cannot have; ``own`` are those that it knows itself."""
    for each in schema.fields:
        shown = f"{each.name} {each.dataType.simpleString()}"
        if not _nullable(each.dataType) or not each.nullable:
            message = f"A message may lack anything: make the column {shown} nullable, throughout."
            raise OptionError(message)
        if each.name == corrupt and not isinstance(each.dataType, StringType):
            message = f"The column {shown} keeps malformed messages, so it is a string."
            raise OptionError(message)
        if each.name in OWN:
            _check_own(each.name, each.dataType, source, own)
        elif (wrong := _unknown(each.dataType)) is not None:
            message = (
                f"Format {source} does not parse {wrong.simpleString()}, which is in the column "
                f"{shown}; declare it as string and convert that."
            )
            raise OptionError(message)


def _check_own(name: str, kind: DataType, source: str, own: tuple[str, ...]) -> None:
    wanted = " or ".join(each.typeName() for each in OWN[name])
    if name not in own:
        message = "The column snapshot goes with onSnapshot=restart."
        raise OptionError(message)
    if not isinstance(kind, OWN[name]):
        message = (
            f"The column {name} of format {source} is {wanted}, not {kind.simpleString()}. If a "
            f"member of the messages is meant: get_json_object(value, '$.{name}')."
        )
        raise OptionError(message)


def _unknown(kind: DataType) -> DataType | None:
    """Return a part of a type that cannot be parsed."""
    if isinstance(kind, StructType):
        return next((part for each in kind if (part := _unknown(each.dataType))), None)
    if isinstance(kind, ArrayType):
        return _unknown(kind.elementType)
    if isinstance(kind, MapType):
        return _unknown(kind.valueType) if type(kind.keyType) is StringType else kind
    return None if type(kind) in SIMPLE else kind


def _nullable(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(each.nullable and _nullable(each.dataType) for each in kind)
    if isinstance(kind, ArrayType):
        return kind.containsNull and _nullable(kind.elementType)
    if isinstance(kind, MapType):
        return kind.valueContainsNull and _nullable(kind.valueType)
    return True
