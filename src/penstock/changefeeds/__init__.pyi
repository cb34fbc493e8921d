from penstock.changefeeds.codecs.decoder import FileOptions
from penstock.changefeeds.directory.listing import DirectoryLayout
from penstock.changefeeds.directory.reader import Ddl, DirectoryReader, TableChanges
from penstock.object_storage import open_storage

__all__ = [
    "Ddl",
    "DirectoryLayout",
    "DirectoryReader",
    "FileOptions",
    "TableChanges",
    "open_storage",
]
