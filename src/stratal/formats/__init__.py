"""Files: safetensors, models as a readable graph with its weights, artefacts of frozen models. Never pickle,
never eval.
"""

from stratal.formats.artifact import FrozenModel as FrozenModel
from stratal.formats.freeze import freeze as freeze
from stratal.formats.model import ModelFile as ModelFile
from stratal.formats.model import read_model as read_model
from stratal.formats.model import write_model as write_model
from stratal.formats.safetensors import load_tensors as load_tensors
from stratal.formats.safetensors import save_tensors as save_tensors
from stratal.formats.saved import SavedModel as SavedModel
from stratal.formats.saved import load as load
from stratal.formats.saved import save as save
