"""Data: the digits that come with the package, data sets, samplers, and batches in a reproducible order."""

from typing import TYPE_CHECKING, Any

from stratal.base.elsewhere import no_name
from stratal.data.bad_rows import BadRowError as BadRowError
from stratal.data.collate import default_collate as default_collate
from stratal.data.collate import default_convert as default_convert
from stratal.data.datasets import ChainDataset as ChainDataset
from stratal.data.datasets import ConcatDataset as ConcatDataset
from stratal.data.datasets import Dataset as Dataset
from stratal.data.datasets import IterableDataset as IterableDataset
from stratal.data.datasets import Subset as Subset
from stratal.data.datasets import TensorDataset as TensorDataset
from stratal.data.datasets import random_split as random_split
from stratal.data.digits import ATTRIBUTION as ATTRIBUTION
from stratal.data.digits import SPLIT as SPLIT
from stratal.data.digits import Digits as Digits
from stratal.data.digits import digits as digits
from stratal.data.digits import digits_split as digits_split
from stratal.data.loader import DataLoader as DataLoader
from stratal.data.missing import is_complete as is_complete
from stratal.data.pipeline import Pipeline as Pipeline
from stratal.data.samplers import BatchSampler as BatchSampler
from stratal.data.samplers import RandomSampler as RandomSampler
from stratal.data.samplers import Sampler as Sampler
from stratal.data.samplers import SequentialSampler as SequentialSampler
from stratal.data.samplers import SubsetRandomSampler as SubsetRandomSampler
from stratal.data.samplers import WeightedRandomSampler as WeightedRandomSampler
from stratal.data.shuffle import permutation as permutation
from stratal.data.shuffle import stratified_split as stratified_split
from stratal.data.sources import CSV as CSV
from stratal.data.sources import ArrowFile as ArrowFile
from stratal.data.sources import AudioFolder as AudioFolder
from stratal.data.sources import ChangedSourceError as ChangedSourceError
from stratal.data.sources import Frame as Frame
from stratal.data.sources import ImageFolder as ImageFolder
from stratal.data.sources import JSONLines as JSONLines
from stratal.data.sources import MissingSourceError as MissingSourceError
from stratal.data.sources import Parquet as Parquet
from stratal.data.sources import SQLQuery as SQLQuery
from stratal.data.sources import SQLTable as SQLTable
from stratal.data.sources import TextLines as TextLines
from stratal.data.sources import memory_map as memory_map
from stratal.data.worker_processes import WorkerDiedError as WorkerDiedError
from stratal.data.workers import LoaderTimeoutError as LoaderTimeoutError
from stratal.data.workers import WorkerInfo as WorkerInfo
from stratal.data.workers import get_worker_info as get_worker_info

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise no_name(__name__, name)
