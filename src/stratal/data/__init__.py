"""Data: the digits that come with the package, and batches of in-memory arrays in a reproducible order."""

from stratal.data.digits import ATTRIBUTION as ATTRIBUTION
from stratal.data.digits import SPLIT as SPLIT
from stratal.data.digits import Digits as Digits
from stratal.data.digits import digits as digits
from stratal.data.digits import digits_split as digits_split
from stratal.data.loader import ConcatDataset as ConcatDataset
from stratal.data.loader import DataLoader as DataLoader
from stratal.data.loader import Dataset as Dataset
from stratal.data.loader import Subset as Subset
from stratal.data.loader import TensorDataset as TensorDataset
from stratal.data.loader import random_split as random_split
from stratal.data.shuffle import permutation as permutation
from stratal.data.shuffle import stratified_split as stratified_split
