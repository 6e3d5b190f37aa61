"""The data source `qs` for Spark: a queue to read or to write, as batch or as stream.

Spark creates and pickles it in several processes, so it holds nothing but the options.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .batch_reader import QsBatchReader
from .options import Options, parse_options
from .reading import check_read_schema, schema
from .stream_reader import QsStreamReader
from .writing import QsBatchWriter, QsStreamWriter, check_write_schema


class QsDataSource(DataSource):
    """The data source of a queue. Raises BadOptionError for wrong options, SchemaMismatchError for wrong columns."""

    @classmethod
    def name(cls) -> str:
        return "qs"

    def schema(self) -> StructType:
        return schema(self._parsed().body_type)

    def reader(self, schema: StructType) -> DataSourceReader:
        return QsBatchReader(self._to_read(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return QsStreamReader(self._to_read(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        check_write_schema(schema, overwrite)
        return QsBatchWriter(self._parsed())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        check_write_schema(schema, overwrite)
        return QsStreamWriter(self._parsed())

    def _parsed(self) -> Options:
        return parse_options(self.options)

    def _to_read(self, given: StructType) -> Options:
        options = self._parsed()
        check_read_schema(given, options.body_type)
        return options
