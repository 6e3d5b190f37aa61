"""XML payloads as typed columns: what a schema file says, and what becomes of payloads that do not fit.

A schema file is an XSD, or a schema of Spark: DDL (`id INT, item ARRAY<STRING>`) or the JSON that `StructType.json()`
writes. Attributes are fields that begin with `_`, text beside attributes is `_VALUE`, as Spark's XML source has it.
"""

import json
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from .errors import SchemaMismatchError, UsageError
from .translate import from_text

DOCUMENT = "document"
CORRUPT = "_corrupt_record"


def read_schema(spark: SparkSession, path: str, *, root: str | None = None) -> StructType:
    """The schema of a document's content, every field nullable. path: of this machine; root: of an XSD, the name of the
    element that payloads are, when it declares several.

    UsageError when the file cannot be read; SchemaMismatchError when it is no schema, or not one of a document.
    """
    text = schema_text(path)
    schema = _parse(spark, path, text, root)
    if not isinstance(schema, StructType) or not schema.fields:
        raise SchemaMismatchError(
            f"{path} describes no document with elements or attributes: there would be no columns"
        )
    if CORRUPT in schema.names:
        raise SchemaMismatchError(f"{path} has a field {CORRUPT}, which is where malformed payloads go: rename it")
    nullable: StructType = _nullable(schema)
    return nullable


def schema_text(path: str) -> str:
    """What is in a schema file. UsageError when it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _parse(spark: SparkSession, path: str, text: str, root: str | None) -> DataType:
    try:
        if text.startswith("<"):
            return _of_xsd(spark, path, text, root)
        if text.startswith("{"):
            return StructType.fromJson(json.loads(text))
        return StructType.fromDDL(text)
    except SchemaMismatchError:
        raise
    except PySparkException as error:
        reason = _first_line(error)
    except Exception as error:  # of Spark's JSON reader, or of Java's XML reader: any
        reason = str(from_text(str(error)))
    raise SchemaMismatchError(f"{path} is no XSD, and no schema of Spark as DDL or JSON: {reason}")


def _first_line(error: PySparkException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__).split(" SQLSTATE:")[0]


def _of_xsd(spark: SparkSession, path: str, text: str, root: str | None) -> DataType:
    java: Any = spark._jvm
    read = java.org.apache.spark.sql.execution.datasources.xml.XSDToSchema.read(text)
    roots = StructType(sorted(StructType.fromJson(json.loads(read.json())).fields, key=lambda each: each.name))
    if root is None and len(roots.fields) != 1:
        raise SchemaMismatchError(
            f"{path} declares {len(roots.fields)} elements ({', '.join(roots.names) or 'none'}): "
            "--xml-root NAME says which of them payloads are"
        )
    if root is not None and root not in roots.names:
        raise SchemaMismatchError(f"{path} declares no element {root!r}, but {', '.join(roots.names) or 'none'}")
    return roots[root or roots.names[0]].dataType


def _nullable(kind: Any) -> Any:
    """The type with every part of it nullable: a payload may lack anything."""
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, _nullable(each.dataType), True) for each in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _nullable(kind.valueType), True)
    return kind


def with_document(rows: DataFrame, schema: StructType) -> DataFrame:
    """The rows with two columns more, of which one is null in each row: `document`, the payload's content as that type,
    and `_corrupt_record`, the payload where it is malformed or does not fit. `body` stays as it is."""
    parsed = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    text = F.make_valid_utf8(F.col("body").cast("string"))
    filled = rows.withColumn("_parsed", F.from_xml(text, parsed, options))
    corrupt = F.col("_parsed").getField(CORRUPT)
    content = F.struct(*(F.col("_parsed").getField(name).alias(name) for name in schema.names))
    return filled.select(*rows.columns, F.when(corrupt.isNull(), content).alias(DOCUMENT), corrupt.alias(CORRUPT))
