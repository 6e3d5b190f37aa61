"""XML payloads as typed columns: reads schema files, and finds payloads that do not fit.

A schema file is an XSD, or a schema of Spark: DDL (`id INT, item ARRAY<STRING>`) or the JSON of `StructType.json()`. As
in Spark's XML source, fields that begin with `_` are attributes, and `_VALUE` is text beside attributes.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from .document_check import VERDICT, Requirements, check_payloads
from .errors import SchemaMismatchError, UsageError
from .translate import from_text
from .xml_parsing import Xsd, read_xsd

DOCUMENT = "document"
CORRUPT = "_corrupt_record"

_UNREADABLE = "Spark cannot read it: a value is not of its column's type, or elements are nested more than 1,000 deep"


class DocumentSchema(StructType):
    """The columns for a document's content, all of them nullable, and the requirements for documents."""

    def __init__(self, content: StructType, *, root: str | None = None, xsd: Xsd | None = None) -> None:
        """content: the columns; a document that lacks a value which is NOT NULL here does not fit; root: the name of
        the root element, `{namespace}name` or `name`, None for any; xsd: the schema that validates documents.

        Raises SchemaMismatchError if there would be no columns, or columns that no document can fill.
        """
        super().__init__(_nullable(content).fields)
        _must_be_fillable(content, DOCUMENT)
        if not content.fields:
            raise SchemaMismatchError("it has no elements or attributes, so there would be no columns")
        if CORRUPT in content.names:
            raise SchemaMismatchError(f"it has a field {CORRUPT}, which is the column for the reason of a misfit")
        # An XSD says itself what is required; without one, NOT NULL does.
        self.requirements = Requirements((self if xsd is not None else content).json(), root, xsd)

    @classmethod
    def typeName(cls) -> str:  # noqa: N802 - Spark's name
        """Returns the type name of a structure, which Spark would otherwise derive from this class's name."""
        return StructType.typeName()


def read_schema(spark: SparkSession, path: str, *, root: str | None = None) -> DocumentSchema:
    """Reads the schema of payloads from a file of this machine. root: the name of the root element, required for an XSD
    that declares several elements; with DDL and JSON it may be `{namespace}name`.

    Raises UsageError if a file cannot be read, and SchemaMismatchError if it is not a schema, or not one of a document.
    Errors in an XSD name the line.
    """
    data = schema_bytes(path)
    if is_xsd(data):
        xsd = read_xsd(path)
        name = _root_name(xsd, root)
        content, root = _columns_of_xsd(spark, xsd, name), xsd.tag(name)
    else:
        xsd, content = None, _columns_of_text(path, data)
    try:
        return DocumentSchema(content, root=root, xsd=xsd)
    except SchemaMismatchError as error:
        raise SchemaMismatchError(f"{path}: {error}") from error


def check_schema_file(path: str, *, root: str | None = None) -> None:
    """Checks a schema file as far as that needs no Spark: that the file can be read, and all of an XSD except its
    columns. Raises like `read_schema`."""
    if is_xsd(schema_bytes(path)):
        _root_name(read_xsd(path), root)


def schema_bytes(path: str) -> bytes:
    """Returns the content of a schema file. Raises UsageError if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def is_xsd(data: bytes) -> bool:
    """Tells whether the content of a schema file is XML."""
    return data.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<")


def _columns_of_text(path: str, data: bytes) -> StructType:
    try:
        text = data.decode("utf-8-sig").strip()
        schema: DataType = StructType.fromJson(json.loads(text)) if text.startswith("{") else StructType.fromDDL(text)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: {error}") from error
    except PySparkException as error:
        reason = _first_line(error)
    except Exception as error:  # Spark's JSON reader raises any kind
        reason = str(from_text(str(error)))
    else:
        if isinstance(schema, StructType):
            return schema
        reason = f"{schema.simpleString()} has no fields"
    raise SchemaMismatchError(f"{path} is no XSD, and no schema of Spark as DDL or JSON: {reason}")


def _first_line(error: PySparkException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__).split(" SQLSTATE:")[0]


def _root_name(xsd: Xsd, root: str | None) -> str:
    """Returns the name of the root element: the given one, or the only one that the XSD declares."""
    if not xsd.elements:
        raise SchemaMismatchError(
            f"{xsd.path} declares no element, only types: declare the root element of the payloads"
        )
    declared = ", ".join(xsd.elements)
    if root is None and len(xsd.elements) != 1:
        raise SchemaMismatchError(
            f"{xsd.path} declares {len(xsd.elements)} elements ({declared}): name the root element with --xml-root"
        )
    if root is not None and root not in xsd.elements:
        raise SchemaMismatchError(f"{xsd.path} declares no element {root!r}, but {declared}")
    return root or xsd.elements[0]


def _columns_of_xsd(spark: SparkSession, xsd: Xsd, name: str) -> StructType:
    """Returns the columns that Spark derives from the element. All files that Spark reads for this have been checked
    before."""
    java: Any = spark._jvm
    try:
        path = java.org.apache.hadoop.fs.Path("file", "", xsd.path)
        read = java.org.apache.spark.sql.execution.datasources.xml.XSDToSchema.read(path)
    except Exception as error:  # any kind, from Java
        cause = str(error)
        reason = "types that contain themselves" if "StackOverflowError" in cause else str(from_text(cause))
        raise SchemaMismatchError(
            f"{xsd.path} is a valid XSD, but Spark cannot make columns of it ({reason}): give the columns as DDL"
        ) from error
    kinds = [each.dataType for each in StructType.fromJson(json.loads(read.json())).fields if each.name == name]
    if len(kinds) != 1 or not isinstance(kinds[0], StructType):
        raise SchemaMismatchError(
            f"{xsd.path}: the element {name!r} has no elements or attributes, so there would be no columns"
        )
    return kinds[0]


def _must_be_fillable(kind: Any, place: str) -> None:
    """Checks that elements can be assigned to columns. Raises SchemaMismatchError if they cannot."""
    if isinstance(kind, ArrayType):
        _must_be_fillable(kind.elementType, place)
    if not isinstance(kind, StructType):
        return
    names: set[str] = set()
    for each in kind.fields:
        if ":" in each.name:
            raise SchemaMismatchError(
                f"the field {each.name!r} of {place} has a prefix: leave the prefix out, and the field matches any"
            )
        if each.name.lower() in names:
            raise SchemaMismatchError(
                f"{place} has the field {each.name!r} twice (Spark ignores case): an element could belong to either"
            )
        names.add(each.name.lower())
        _must_be_fillable(each.dataType, f"{place}.{each.name}")


def _nullable(kind: Any) -> Any:
    """Returns the type with every part of it nullable."""
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, _nullable(each.dataType), True) for each in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _nullable(kind.valueType), True)
    return kind


def with_document(rows: DataFrame, schema: StructType) -> DataFrame:
    """Returns the rows with two more columns, one of them null in each row: `document`, the payload's content as that
    type, and `_corrupt_record`, the reason why the payload does not fit. `body` stays unchanged.

    rows: have the payload in a column `body`, binary or string; schema: from `read_schema`, or any structure.
    """
    if not isinstance(schema, DocumentSchema):  # a user's own structure: without a root and an XSD
        schema = DocumentSchema(schema)
    # Without ignoreNamespace, Spark reads nothing of elements with a prefix.
    parsed = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "ignoreNamespace": "true"}
    verdict, document = F.col("_verdict"), F.col("_parsed")
    # Spark reads only payloads that have passed the check.
    read = F.when(verdict.misfit.isNull(), F.from_xml(F.col("body").cast("string"), parsed, options))
    unread = F.when(document.getField(CORRUPT).isNotNull(), F.coalesce(verdict.doubt, F.lit(_UNREADABLE)))
    content = F.struct(*(document.getField(name).alias(name) for name in schema.names))
    checked = rows.withColumn("_verdict", _checking(schema.requirements)(F.col("body").cast("binary")))
    found = checked.withColumn("_parsed", read).withColumn(CORRUPT, F.coalesce(verdict.misfit, unread))
    return found.select(*rows.columns, F.when(F.col(CORRUPT).isNull(), content).alias(DOCUMENT), CORRUPT)


def _checking(requirements: Requirements) -> Any:
    def check(bodies: pa.Array) -> pa.Array:
        return check_payloads(bodies, requirements)

    return arrow_udf(check, VERDICT)  # type: ignore[call-overload]  # the third argument is found at run time
