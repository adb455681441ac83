"""Sources: files, databases, frames and folders as data sets of rows, read when they are asked for.

    row = source[k]                     a mapping of columns; of an image folder, image and class
    rows = source.__getitems__(ks)      several at once
    columns = source.columns_at(ks)     by columns, where a source has them: batches without rows in between
"""

from stratal.data.sources.arrow_files import ArrowFile as ArrowFile
from stratal.data.sources.arrow_files import Parquet as Parquet
from stratal.data.sources.audio import AudioFolder as AudioFolder
from stratal.data.sources.csv_files import CSV as CSV
from stratal.data.sources.frames import Frame as Frame
from stratal.data.sources.images import ImageFolder as ImageFolder
from stratal.data.sources.json_lines import JSONLines as JSONLines
from stratal.data.sources.memory_map import memory_map as memory_map
from stratal.data.sources.opening import MissingSourceError as MissingSourceError
from stratal.data.sources.sql import SQLQuery as SQLQuery
from stratal.data.sources.sql import SQLTable as SQLTable
from stratal.data.sources.text_lines import TextLines as TextLines
from stratal.data.sources.unchanged import ChangedSourceError as ChangedSourceError
