"""The data source `qs`, as `register` gives it to Spark: a queue to read from or to write to, as batch or as stream.

Spark makes one in several processes and sends it about: it holds the options as they were given, and nothing else.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .arrow import must_be_ours, schema
from .batch_reader import QsBatchReader
from .batch_writer import QsBatchWriter
from .options import Options, parse_options
from .staging import must_fit
from .stream_reader import QsStreamReader
from .stream_writer import QsStreamWriter


class QsDataSource(DataSource):
    """A queue. BadOptionError when the options are wrong, SchemaMismatchError when the columns are."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return "qs"

    def schema(self) -> StructType:
        """Of the rows that are read."""
        return schema(self._parsed().body_type)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a batch."""
        return QsBatchReader(self._to_read(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Of a stream."""
        return QsStreamReader(self._to_read(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Of a batch."""
        must_fit(schema, overwrite)
        return QsBatchWriter(self._parsed())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Of a stream."""
        must_fit(schema, overwrite)
        return QsStreamWriter(self._parsed())

    def _parsed(self) -> Options:
        return parse_options(self.options)

    def _to_read(self, given: StructType) -> Options:
        options = self._parsed()
        must_be_ours(given, options.body_type)
        return options
