"""Data: the digits that come with the package, data sets, samplers, and batches in a reproducible order."""

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
from stratal.data.samplers import BatchSampler as BatchSampler
from stratal.data.samplers import RandomSampler as RandomSampler
from stratal.data.samplers import Sampler as Sampler
from stratal.data.samplers import SequentialSampler as SequentialSampler
from stratal.data.samplers import SubsetRandomSampler as SubsetRandomSampler
from stratal.data.samplers import WeightedRandomSampler as WeightedRandomSampler
from stratal.data.shuffle import permutation as permutation
from stratal.data.shuffle import stratified_split as stratified_split
from stratal.data.workers import LoaderTimeoutError as LoaderTimeoutError
from stratal.data.workers import WorkerInfo as WorkerInfo
from stratal.data.workers import get_worker_info as get_worker_info
