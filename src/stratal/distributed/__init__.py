"""Many processes, one program: ranks over MPI, collectives with algorithms of our own, strategies.

`stratal launch -n 4 script.py` starts ranks; a script started by itself is a job of one rank, without MPI.
"""

import sys as _sys

from stratal.base.elsewhere import no_attribute as _no_attribute
from stratal.distributed.collectives import Pending as Pending
from stratal.distributed.collectives import all_gather as all_gather
from stratal.distributed.collectives import all_reduce as all_reduce
from stratal.distributed.collectives import all_to_all as all_to_all
from stratal.distributed.collectives import barrier as barrier
from stratal.distributed.collectives import broadcast as broadcast
from stratal.distributed.collectives import check_same as check_same
from stratal.distributed.collectives import permute as permute
from stratal.distributed.collectives import receive as receive
from stratal.distributed.collectives import reduce_scatter as reduce_scatter
from stratal.distributed.collectives import send as send
from stratal.distributed.collectives import traffic as traffic
from stratal.distributed.data_parallel import data as data
from stratal.distributed.data_parallel import parallel as parallel
from stratal.distributed.data_parallel import shard as shard
from stratal.distributed.data_parallel import synchronize as synchronize
from stratal.distributed.errors import CollectiveTimeoutError as CollectiveTimeoutError
from stratal.distributed.errors import ProgramMismatchError as ProgramMismatchError
from stratal.distributed.errors import RankLostError as RankLostError
from stratal.distributed.links import Link as Link
from stratal.distributed.overlapped import overlap as overlap
from stratal.distributed.parameter_server import parameter_server as parameter_server
from stratal.distributed.parameter_server import pull as pull
from stratal.distributed.sharded_parameters import full_parameters as full_parameters
from stratal.distributed.shared_checkpoint import Ranks as Ranks
from stratal.distributed.snapshot import Snapshot as Snapshot
from stratal.distributed.stale_steps import Staleness as Staleness
from stratal.distributed.stale_steps import staleness as staleness
from stratal.distributed.world import init as init
from stratal.distributed.world import is_initialized as is_initialized
from stratal.distributed.world import rank as rank
from stratal.distributed.world import world_size as world_size
from stratal.distributed.zero import Memory as Memory
from stratal.distributed.zero import zero as zero
from stratal.distributed.zero import zero_memory as zero_memory


def __getattr__(name: str) -> object:
    raise _no_attribute(_sys.modules[__name__], "module 'stratal.distributed'", name)
